"""Why a run is slower than its plan."""
