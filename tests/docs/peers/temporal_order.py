"""Executes the order of the page without a server: activities directly, and the workflow against a recorded history.

The SDK replays the workflow in its sandbox, as a worker does, and refuses commands that the history does not have.
Names that the page translates are looked for, too.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

from order import Fulfil, charge, ship
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Interceptor, Replayer, WorkflowInboundInterceptor

QUEUE = {"name": "shop"}


class Printed(WorkflowInboundInterceptor):  # type: ignore[misc]  # Temporal is not installed where types are checked
    """Prints what the workflow returns."""

    async def execute_workflow(self, input: Any) -> Any:  # noqa: A002 -- as Temporal names and types it
        """Execute it."""
        result = await super().execute_workflow(input)
        with workflow.unsafe.sandbox_unrestricted():
            print(result)
        return result


class Prints(Interceptor):  # type: ignore[misc]  # likewise: it is not installed
    """Has results printed."""

    def workflow_interceptor_class(self, input: Any) -> Any:  # noqa: A002, ARG002 -- as Temporal names it
        """Return what prints them."""
        return Printed


def packed(*values: object) -> dict[str, Any]:
    """Return values as Temporal stores them."""
    encoding = base64.b64encode(b"json/plain").decode()
    data = [base64.b64encode(json.dumps(value).encode()).decode() for value in values]
    return {"payloads": [{"metadata": {"encoding": encoding}, "data": each} for each in data]}


class Recorded:
    """A history as a server would have recorded it."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, kind: str, **attributes: object) -> str:
        """Record an event; return its id."""
        number = str(len(self.events) + 1)
        first, *rest = kind.lower().split("_")
        name = f"{first}{''.join(map(str.title, rest))}EventAttributes"
        event = {"eventId": number, "eventTime": "2026-11-19T06:00:00Z", "eventType": f"EVENT_TYPE_{kind}"}
        self.events.append({**event, name: attributes})
        return number

    def task(self) -> str:
        """Record that a worker went on with the workflow."""
        scheduled = self.add("WORKFLOW_TASK_SCHEDULED", taskQueue=QUEUE, startToCloseTimeout="10s", attempt=1)
        started = self.add("WORKFLOW_TASK_STARTED", scheduledEventId=scheduled)
        return self.add("WORKFLOW_TASK_COMPLETED", scheduledEventId=scheduled, startedEventId=started)

    def activity(self, number: int, name: str, result: object, by: str) -> None:
        """Record an activity that returned something."""
        options: dict[str, Any] = {"activityId": str(number), "activityType": {"name": name}, "input": packed("tea")}
        options |= {"taskQueue": QUEUE, "startToCloseTimeout": "60s", "workflowTaskCompletedEventId": by}
        scheduled = self.add("ACTIVITY_TASK_SCHEDULED", **options)
        started = self.add("ACTIVITY_TASK_STARTED", scheduledEventId=scheduled, attempt=1)
        done = {"scheduledEventId": scheduled, "startedEventId": started, "result": packed(result)}
        self.add("ACTIVITY_TASK_COMPLETED", **done)


def history(receipt: str) -> WorkflowHistory:
    """Return the history of an order that is charged, gets its signal within the two days, and is shipped."""
    recorded = Recorded()
    started = {"workflowType": {"name": "Fulfil"}, "taskQueue": QUEUE, "input": packed("tea"), "attempt": 1}
    recorded.add("WORKFLOW_EXECUTION_STARTED", **started, originalExecutionRunId="r", workflowTaskTimeout="10s")
    recorded.activity(1, "charge", receipt, recorded.task())
    by = recorded.task()
    timer = recorded.add("TIMER_STARTED", timerId="1", startToFireTimeout="172800s", workflowTaskCompletedEventId=by)
    recorded.add("WORKFLOW_EXECUTION_SIGNALED", signalName="ready", input=packed())
    by = recorded.task()
    recorded.add("TIMER_CANCELED", timerId="1", startedEventId=timer, workflowTaskCompletedEventId=by)
    recorded.activity(2, "ship", None, by)
    by = recorded.task()
    recorded.add("WORKFLOW_EXECUTION_COMPLETED", result=packed(receipt), workflowTaskCompletedEventId=by)
    return WorkflowHistory.from_json("order-7", {"events": recorded.events})


async def main() -> None:
    """Execute the activities, and replay the workflow with what the first returned."""
    missing = [name for name in sys.argv[1:] if not hasattr(workflow, name)]
    assert not missing, f"temporalio.workflow has none of these: {missing}"
    environment = ActivityEnvironment()
    receipt = await environment.run(charge, "tea")
    await environment.run(ship, "tea")
    await Replayer(workflows=[Fulfil], interceptors=[Prints()]).replay_workflow(history(receipt))


if __name__ == "__main__":
    asyncio.run(main())
