"""Sandblaster's coordinator, which hands out portions and runs L-BFGS on numbers, and the servers that it commands.

Servers do all in the order of its commands, so the same portions make the same gradient whoever computed them.
"""

from datetime import timedelta
from threading import Lock, Thread
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from paceline.contract.context import Context
from paceline.costs.servers import Cut
from paceline.frameworks.torch.group import leave_group
from paceline.strategies.torch.sandblaster import job
from paceline.strategies.torch.sandblaster.job import Places, message
from paceline.strategies.torch.sandblaster.lbfgs import HistorySlice, Numbers, Orders, Recursion
from paceline.strategies.torch.sandblaster.messages import COMMAND_HEAD, WORKER_WORD, command_length, reply_length
from paceline.strategies.torch.sandblaster.portions import PortionScheduler

TAKE, SEND, MEASURE, MOVE, STAY, END = range(6)
NO_SLOT = -1


class Coordinator:
    """A thread for each worker, and one that moves the parameters when all portions of a step are there."""

    def __init__(self, context: Context, servers: int, portions: int, history: int, lr: float) -> None:
        self._places = Places.of(context.spec.workers, servers)
        # A worker may evaluate or compile for long; one that died closes its connection.
        self._patience = timedelta(seconds=context.spec.timeout_seconds)
        self._history, self._recursion = history, Recursion(history, lr)
        self._scheduler = PortionScheduler(portions, context.spec.workers)
        self._sending = Lock()
        # The step whose parameters each worker has; all start with the first.
        self._has = [0] * context.spec.workers

    def serve(self) -> None:
        """Step by step, until every worker is done or one is lost."""
        for worker in self._places.workers:
            Thread(target=self._attend_to_end, args=(worker,), daemon=True).start()
        while self._scheduler.wait_for_all():
            self._move_parameters()
            self._scheduler.close_step()
        self._send_command(END)

    def _attend_to_end(self, worker: int) -> None:
        try:
            self._attend(worker)
        except BaseException as error:
            self._scheduler.remove_worker(error)
        else:
            self._scheduler.remove_worker()

    def _attend(self, worker: int) -> None:
        word = torch.zeros(WORKER_WORD, dtype=torch.float64)
        while True:
            dist.irecv(word, worker, tag=job.WORD_TAG).wait(self._patience)
            wish, step, portion, loss = word.tolist()
            if wish == job.DONE:
                return
            if wish == job.ASK:
                answer = self._hand_out(worker, int(step))
            elif wish == job.RESULT:
                answer = message(self._accept(worker, int(step), int(portion), loss), 0, 0)
            else:
                answer = message(1, self._bring_up_to_date(worker, self._scheduler.step), 0)
            dist.send(answer, worker, tag=job.WORD_TAG)

    def _hand_out(self, worker: int, step: int) -> Tensor:
        portion = self._scheduler.next_portion(worker, step)
        if portion is None:
            return message(job.OVER, 0, self._scheduler.step_losses[step])
        return message(portion, self._bring_up_to_date(worker, step), 0)

    def _bring_up_to_date(self, worker: int, step: int) -> bool:
        """Has the servers send their parameters to a worker whose own are of an earlier step."""
        outdated = self._has[worker] != step
        if outdated:
            self._has[worker] = step
            self._send_command(SEND, worker)
        return outdated

    def _accept(self, worker: int, step: int, portion: int, loss: float) -> bool:
        counts = self._scheduler.accept_result(worker, step, portion, loss)
        if counts:
            self._send_command(TAKE, worker, portion)
            self._scheduler.result_arrived()
        return counts

    def _send_command(self, *numbers: float) -> None:
        """Sends a command to every server; each gets all commands in the same order."""
        command = torch.zeros(command_length(self._history), dtype=torch.float64)
        command[: len(numbers)] = message(*numbers)
        with self._sending:
            for server in self._places.servers:
                dist.send(command, server, tag=job.WORD_TAG)

    def _move_parameters(self) -> None:
        self._send_command(MEASURE)
        largest, products = 0.0, np.zeros(reply_length(self._history) - 1)
        for server in self._places.servers:
            reply = torch.zeros(reply_length(self._history), dtype=torch.float64)
            dist.irecv(reply, server, tag=job.WORD_TAG).wait(self._patience)
            largest, products = max(largest, float(reply[0])), products + reply[1:].numpy()
        orders = self._recursion.orders(products, largest)
        if orders is None:
            self._send_command(STAY)
        else:
            slot = NO_SLOT if orders.slot is None else orders.slot
            self._send_command(MOVE, slot, orders.length, orders.moves, *orders.weights)

    def details(self) -> dict[str, Any]:
        """How the portions were handed out."""
        return {
            "held_bytes": {"parameters": 0, "optimizer": 0},
            "handed_out": self._scheduler.handed_out,
            "backup_tasks": self._scheduler.backups,
            "backup_tasks_used": self._scheduler.backups_used,
        }

    def close(self) -> None:
        """Workers and servers know that it is over."""
        leave_group()


class SliceServer:
    """Keeps a slice of the parameters and of the L-BFGS history, and does as it is told."""

    def __init__(self, context: Context, servers: int, history: int) -> None:
        self._places = Places.of(context.spec.workers, servers)
        self._patience = timedelta(seconds=context.spec.timeout_seconds)
        self._history = history
        elements = message(0)
        dist.irecv(elements, 0, tag=job.WORD_TAG).wait(self._patience)
        total, index = int(elements), context.process.index
        length = sum(piece.elements for piece in Cut(servers, max(1, total)).pieces(total) if piece.server == index)
        values = torch.empty(length)
        dist.recv(values, 0, tag=job.VALUE_TAG)
        self._slice = HistorySlice(values, history)
        self._arriving: dict[int, tuple[Any, Tensor]] = {}
        self._spare: list[Tensor] = []
        self._leaving: list[Any] = []
        self._added, self._moves = 0, 0

    def serve(self) -> None:
        """One command after the other."""
        command = torch.zeros(command_length(self._history), dtype=torch.float64)
        while True:
            dist.irecv(command, self._places.coordinator, tag=job.WORD_TAG).wait(self._patience)
            kind, first, second = (int(number) for number in command[:3])
            if kind == END:
                break
            if kind == TAKE:
                self._take(worker=first, portion=second)
            elif kind == SEND:
                self._leaving.append(dist.isend(self._slice.values, first, tag=job.VALUE_TAG))
            elif kind == MEASURE:
                dist.send(self._measure(), self._places.coordinator, tag=job.WORD_TAG)
            else:
                self._close_step(None if kind == STAY else command.numpy())

    def _take(self, worker: int, portion: int) -> None:
        self._add_up(leave=1)
        buffer = self._spare.pop() if self._spare else torch.empty_like(self._slice.values)
        self._arriving[portion] = dist.irecv(buffer, worker, tag=job.GRADIENT_TAG), buffer

    def _add_up(self, leave: int) -> None:
        """Portions in their order, whatever order they come in; the newest ones may still be on their way."""
        while self._added in self._arriving and len(self._arriving) > leave:
            work, gradient = self._arriving.pop(self._added)
            work.wait(self._patience)
            if self._added == 0:
                self._slice.gradient.copy_(gradient)
            else:
                self._slice.gradient.add_(gradient)
            self._spare.append(gradient)
            self._added += 1

    def _measure(self) -> Tensor:
        self._add_up(leave=0)
        products = torch.from_numpy(self._slice.measure())
        return torch.cat((self._slice.gradient.abs().max().double().view(1), products))

    def _close_step(self, command: Numbers | None) -> None:
        for work in self._leaving:
            work.wait()
        self._leaving, self._added = [], 0
        if command is None:
            self._slice.stay()
            return
        _, slot, length, moves = command[:COMMAND_HEAD]
        self._slice.move(
            Orders(None if slot == NO_SLOT else int(slot), float(length), bool(moves), command[COMMAND_HEAD:])
        )
        self._moves += 1

    def details(self) -> dict[str, Any]:
        """What it held and did."""
        return {"held_bytes": self._slice.held_bytes, "updates": self._moves}

    def close(self) -> None:
        """Whatever was sent has arrived: workers are done only after that."""
        leave_group()
