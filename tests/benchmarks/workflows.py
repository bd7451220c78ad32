"""What workflows cost, beside plain jobs in the same run."""

from __future__ import annotations

from backends import HERE, Backend
from figures import Figure, say


def figures(backend: Backend, runs: int, *, scale: int = 1) -> list[Figure]:
    """Chain, map, submit and pick-up; `scale` divides the sizes."""
    group = f"workflows on {backend.name}, worker in the same process, concurrency 10"
    made: list[Figure] = []

    def rows(part: str, count: int) -> list[dict[str, float]]:
        say(f"{part} of {count:,}")
        found: list[dict[str, float]] = []
        for _ in range(runs):
            with backend.place() as at:
                found.append(at.run(str(HERE / "flows.py"), part, str(count)))
        return found

    def add(name: str, unit: str, values: list[float], goal: str = "") -> None:
        made.append(Figure.of(group, name, unit, values, goal))

    steps = 1000 // scale
    chained = rows("chain", steps)
    add("plain jobs, call to result, one by one", "jobs/s", [row["plain"] for row in chained])
    add(f"chain of {steps:,}", "steps/s", [row["chain"] for row in chained])
    ratios = [row["chain"] / row["plain"] for row in chained]
    add("ratio, chain", "", ratios, "goal: at least 0.5")
    costs: dict[int, list[float]] = {}
    for items in (100 // scale, 1000 // scale, 10_000 // scale):
        mapped = rows("map", items)
        costs[items] = [1e6 / row["map"] for row in mapped]
        add(f"map of {items:,} with a join", "items/s", [row["map"] for row in mapped])
        add(f"cost of an item of {items:,}", "µs", costs[items])
        goal = "goal: at least 0.5" if items == 10_000 // scale else ""
        ratios = [row["map"] / row["plain"] for row in mapped]
        add(f"ratio to plain jobs, {items:,}", "", ratios, goal)
    little, *_, many = costs.values()
    ratios = [after / before for after, before in zip(many, little, strict=True)]
    add("cost of an item, many to few", "", ratios, "goal: at most about 1")
    submitted = rows("submit", steps)
    add(f"submit of {steps:,} steps", "ms", [row["ms"] for row in submitted])
    add("calls of the transport", "", [row["calls"] for row in submitted], "goal: 1")
    picked = rows("pickup", max(20, 200 // scale))
    add("idle pick-up, p50", "ms", [row["idle"] for row in picked])
    add("pick-up of a successor, p50", "ms", [row["successor"] for row in picked])
    ratios = [row["successor"] / row["idle"] for row in picked]
    add("ratio, pick-up", "", ratios, "goal: at most 1.5")
    return made
