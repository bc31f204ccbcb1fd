"""The known schedules, by name. Each takes a Problem and gives a Schedule, or raises `Unsupported` and says what it needs."""

from schedc.solvers.common.method import Template, methods_in

ALL_TEMPLATES = {
    each.name: each() for each in sorted(methods_in("templates"), key=lambda method: method.place) if issubclass(each, Template)
}
"""Every known schedule, from the simplest on."""
TEMPLATES = {name: each for name, each in ALL_TEMPLATES.items() if not each.steps_overlap}
"""Those of steps that end before the next begins."""
OVERLAPPING_TEMPLATES = {name: each for name, each in ALL_TEMPLATES.items() if each.steps_overlap}
"""Those of steps that overlap."""
