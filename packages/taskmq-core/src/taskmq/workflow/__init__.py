"""Workflows: graphs of tasks that advance by themselves. `@app.workflow` declares one."""

from __future__ import annotations

from taskmq.errors import BudgetExceeded
from taskmq.workflow.builder import WorkflowBuilder
from taskmq.workflow.definition import Workflow
from taskmq.workflow.handle import WorkflowHandle
from taskmq.workflow.history import HistoryEntry
from taskmq.workflow.plan import Budget, WorkflowPlan
from taskmq.workflow.planner import PlanEvaluation
from taskmq.workflow.status import RunStatus, StepStatus
from taskmq.workflow.steps import Branch, Field, Step

__all__ = [
    "Branch",
    "Budget",
    "BudgetExceeded",
    "Field",
    "HistoryEntry",
    "PlanEvaluation",
    "RunStatus",
    "Step",
    "StepStatus",
    "Workflow",
    "WorkflowBuilder",
    "WorkflowHandle",
    "WorkflowPlan",
]
