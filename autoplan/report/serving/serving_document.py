"""Serving plans and their front as documents."""

from __future__ import annotations

from autoplan.report.document_fields import SCHEMA, Document, assumptions, plain
from autoplan.report.serving.serving_words import left_to_engine
from autoplan.results.job_summary import serving_job_document, serving_provenance
from autoplan.results.serving.plan_values import serving_change_values, serving_plan_values
from autoplan.results.serving.serving_front import ServingFront, ServingPlan
from autoplan.schema.resolved_job import HASH, document_hash, resolved_values
from autoplan.schema.serving.serving_spec import ServingJob


def serving_front_document(front: ServingFront) -> Document:
    """Return a front as a document; ``reasons`` is empty with plans.

    ``resolved`` is the job with all names resolved, so that the answer can be verified where its files are
    not; ``answer_hash`` is the SHA-256 of everything else.
    """
    document = {
        "schema": SCHEMA,
        "kind": "serving",
        "job": serving_job_document(front.job),
        "front": [serving_plan_values(front.job, plan) for plan in front.plans],
        "answers": [
            {
                "devices": answer.job.cluster.devices,
                "plans": len(answer.plans),
                "reasons": list(answer.reasons),
            }
            for answer in front.answers
        ],
        "scaling": [_scaled(answer) for answer in front.scaling],
        "disaggregation": _disaggregation(front),
        "mixing": _mixing(front),
        "certificate": plain(front.certificate),
        "rejected": [{"reason": fell.reason, "units": fell.layouts} for fell in front.rejected],
        "reasons": list(front.reasons),
        "conflict": list(front.conflict),
        "changes": serving_change_values(front.job, front.changes),
        "provenance": serving_provenance(front.job),
        **assumptions(front.job.source),
        "resolved": resolved_values(front.job),
    }
    return {**document, HASH: document_hash(document)}


def _disaggregation(front: ServingFront) -> Document | None:
    """Return the best plans with pools for prefill and decode and without; None where only one is allowed."""
    compared = front.comparison
    if compared is None:
        return None
    plans = {"pools": compared.pools, "both": compared.both}
    return {
        "objective": compared.objective,
        "worth_it": compared.worth_it,
        "gain": compared.gain,
        **{name: plan and serving_plan_values(front.job, plan) for name, plan in plans.items()},
    }


def _mixing(front: ServingFront) -> Document | None:
    """Return a better plan of unlike formats; None without one, or where the job mixes them."""
    mixing = front.mixing
    if mixing is None:
        return None
    plan = serving_plan_values(front.job, mixing.plan)
    return {"objective": mixing.objective, "gain": mixing.gain, "plan": plan}


def _scaled(answer: ServingFront) -> Document:
    """Return the row of one load: the first plan of its front, which has the fewest devices."""
    workload, plan = answer.job.workload, answer.plans[0] if answer.plans else None
    return {
        "request_rate": workload.request_rate,
        "concurrency": workload.concurrency,
        "devices": plan.devices if plan else None,
        "plans": len(answer.plans),
        "layout_string": plan.layout_string if plan else None,
        "engines": serving_plan_values(answer.job, plan)["engines"] if plan else [],
        "time_to_first_token_seconds": plan.time_to_first_token if plan else None,
        "time_per_output_token_seconds": plan.time_per_output_token if plan else None,
        "output_tokens_per_second": plan.output_tokens_per_second if plan else None,
        "reasons": list(answer.reasons),
    }


def serving_plan_document(job: ServingJob, plan: ServingPlan) -> Document:
    """Return one plan as a document."""
    return {
        "schema": SCHEMA,
        "kind": "serving",
        "job": serving_job_document(job),
        **serving_plan_values(job, plan),
        "left_to_engine": left_to_engine(job, plan),
        "provenance": serving_provenance(job),
    }
