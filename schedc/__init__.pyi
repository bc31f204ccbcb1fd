"""The types of what `import schedc` exports: those of `schedc.api`, from where it is loaded at its first use."""

from schedc.api import (
    Bound as Bound,
)
from schedc.api import (
    CheckFailed as CheckFailed,
)
from schedc.api import (
    Compiled as Compiled,
)
from schedc.api import (
    Defect as Defect,
)
from schedc.api import (
    Improvement as Improvement,
)
from schedc.api import (
    Infeasible as Infeasible,
)
from schedc.api import (
    InvalidInput as InvalidInput,
)
from schedc.api import (
    Job as Job,
)
from schedc.api import (
    NoPlanFound as NoPlanFound,
)
from schedc.api import (
    Plan as Plan,
)
from schedc.api import (
    SchedcError as SchedcError,
)
from schedc.api import (
    Timeline as Timeline,
)
from schedc.api import (
    Unsupported as Unsupported,
)
from schedc.api import (
    Violation as Violation,
)
from schedc.api import (
    compile_job as compile_job,
)
from schedc.api import (
    lower_bounds as lower_bounds,
)
from schedc.api import (
    make_job as make_job,
)
from schedc.api import (
    read_job as read_job,
)
from schedc.api import (
    read_plan as read_plan,
)
from schedc.api import (
    simulate_plan as simulate_plan,
)
from schedc.api import (
    verify_plan as verify_plan,
)
from schedc.api import (
    write_plan as write_plan,
)

__version__: str
__all__: list[str]
