"""Set before any test loads torch: threads that wait do not spin, or a busy machine takes several times as long."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
