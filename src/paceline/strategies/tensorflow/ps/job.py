"""TensorFlow's parameter servers: the chief hands out shares of each batch, workers train on whatever comes next.

Variables and what the optimizer keeps beside them live on servers; a worker reads them, computes gradients and has them
applied there, without regard for what other workers did meanwhile.
"""

import contextlib
import json
import math
import os
import socket
import threading
from collections import deque
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.contract.context import Context
from paceline.contract.job import Share
from paceline.frameworks.keras.optimizer import TorchOptimizer
from paceline.frameworks.meeting import held_addresses
from paceline.frameworks.staleness import Staleness
from paceline.frameworks.tensorflow.devices import prepare
from paceline.frameworks.tensorflow.passes import clip_gradients
from paceline.frameworks.tensorflow.training import TfJob
from paceline.strategies.tensorflow.ps.placement import ServerAssignment, shapes_of
from paceline.workloads.base import model_facts

# TensorFlow's own names of the roles.
JOBS = {"chief": "chief", "worker": "worker", "server": "ps"}
CHIEF_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"
# A kernel that counts stops at a limit; this one is never reached.
NO_LIMIT = 2**62
CHUNK_BYTES = 1 << 16


def cluster(context: Context, addresses: list[str]) -> tf.train.ClusterSpec:
    """Who listens where, in TensorFlow's words: the chief, then workers, then servers, as ranks go."""
    workers = 1 + context.spec.workers
    return tf.train.ClusterSpec({"chief": addresses[:1], "worker": addresses[1:workers], "ps": addresses[workers:]})


class Member:
    """A worker or a server: TensorFlow's own server does all the work until the chief is done."""

    def __init__(self, context: Context) -> None:
        prepare(context)
        # A function waits in a thread for what other processes send, and each worker has one running here.
        threads = tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=2 + context.spec.workers,
            intra_op_parallelism_threads=tf.config.threading.get_intra_op_parallelism_threads(),
        )
        self._threads, self._details = threads, dict[str, Any]()
        with held_addresses(context) as addresses:
            self._server = tf.distribute.Server(
                cluster(context, addresses),
                job_name=JOBS[context.process.role],
                task_index=context.process.index,
                protocol="grpc",
                config=threads,
            )
        self._connection = connect_to_chief(context)

    def serve(self) -> None:
        """Waits until the chief ends. The chief knows what was done here, because it asked for all of it."""
        self._details = receive_details(self._connection)

    def details(self) -> dict[str, Any]:
        """What the chief sent, and the thread pools."""
        return {
            **self._details,
            "intra_threads": self._threads.intra_op_parallelism_threads,
            "inter_threads": self._threads.inter_op_parallelism_threads,
            "tensorflow": tf.__version__,
        }

    def close(self) -> None:
        """TensorFlow's server goes with the process."""
        self._connection.close()


class Placement:
    """Puts each new variable on a server; what an optimizer keeps goes beside its variable without this."""

    def __init__(self, assignment: ServerAssignment) -> None:
        self._assignment, self.open = assignment, True

    def __call__(self, next_creator: Any, **fields: Any) -> Any:
        """Called by `tf.variable_creator_scope`, after the strategy has chosen a server in turn."""
        if not self.open or "colocate_with" in fields:
            return next_creator(**fields)
        with tf.device(CHIEF_DEVICE):
            initial = fields["initial_value"]
            value = tf.convert_to_tensor(initial() if callable(initial) else initial, fields.get("dtype"))
        server = self._assignment.place(tuple(value.shape), value.dtype.size * math.prod(value.shape))
        with tf.device(f"/job:ps/replica:0/task:{server}/device:CPU:0"):
            return next_creator(**{**fields, "initial_value": value})


class Chief(TfJob):
    """The process that holds nothing and computes nothing but evaluation, and tells all others what to do."""

    def __init__(self, context: Context, servers: int, ahead: int, stride: int) -> None:
        prepare(context)
        tf.config.threading.set_inter_op_parallelism_threads(2 + context.spec.workers)
        self._servers, self._ahead, self._workers = servers, ahead, context.spec.workers
        self.updates_per_step = self._workers
        self._connections, strategy = _connect(context)
        if context.spec.membership is not None:
            threading.Thread(target=accept_newcomers, args=(context, self._connections), daemon=True).start()
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        known = () if context.user_model else shapes_of(model_facts(context.model.layers, context.data.input_shape))
        self._placement = Placement(ServerAssignment(servers, known))
        with tf.variable_creator_scope(self._placement):
            super().__init__(context, strategy, [CHIEF_DEVICE], stride=stride, replicas=1)
        with strategy.scope(), tf.device(CHIEF_DEVICE):
            self._done = tf.Variable(tf.constant(0, tf.int64), trainable=False, per_worker_variable=True)
        self._own_optimizer = not isinstance(self._optimizer, TorchOptimizer)
        self._version = self._optimizer.iterations.value if not self._own_optimizer else self._counter()
        self._share = tf.function(self._train_on, autograph=False)
        self._handed_out: deque[list[Any]] = deque()
        self._answers: list[np.ndarray] = []
        self._indices: np.ndarray = np.empty(0, np.int64)
        self._warm = False
        self._staleness = [Staleness() for _ in range(self._workers)]
        # Which workers made each step of the epoch.
        self._makers: list[tuple[int, ...]] = []

    def _on_each_device(self, share: Any) -> Any:
        """A copy on each worker; what comes after the model and its optimizer is not for servers."""
        self._placement.open = False
        with self._strategy.scope(), tf.device(CHIEF_DEVICE):
            return tf.Variable(share(0), trainable=False, per_worker_variable=True)

    def _counter(self) -> tf.Variable:
        with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
            return tf.Variable(tf.constant(0, tf.int64), trainable=False)

    def start_epoch(self, epoch: int) -> None:
        """All shares of all batches, to be handed out one by one: each is used once, by whoever is free."""
        local = self._context.spec.samples_per_step // self._workers
        whole = self._context.order.epoch(epoch)
        self._indices = whole.reshape(len(whole), self._workers, local)
        self._answers, self._makers = [], []

    def step(self, first: int, count: int) -> None:
        """Hands out the shares of these steps, and waits for those of some steps before."""
        shares = self._indices[first : first + count]
        with tf.device(CHIEF_DEVICE):
            orders = [tf.constant(shares[:, worker]) for worker in range(self._workers)]
        self._handed_out.append([self._coordinator.schedule(self._share, args=(order,)) for order in orders])
        # The first step of a run is waited for, so that its time is that of tracing and setting up.
        self._take_back(self._ahead if self._warm else 0)
        self._warm = True

    def wait(self) -> None:
        """Waits for all shares that are still with the workers."""
        self._take_back(0)

    def _take_back(self, left: int) -> None:
        while len(self._handed_out) > left:
            self._keep(np.stack([answer.fetch() for answer in self._handed_out.popleft()]))

    def _keep(self, answers: np.ndarray) -> None:
        """Keeps the answers to a call: for each share and step the loss, the worker and the staleness."""
        for worker, staleness in answers[:, :, 1:].reshape(-1, 2).astype(int):
            self._staleness[worker].add(int(staleness))
        self._answers += list(answers[:, :, 0].mean(axis=0))
        self._makers += [tuple(sorted(set(step.astype(int).tolist()))) for step in answers[:, :, 1].T]

    def _train_on(self, order: tf.Tensor) -> tf.Tensor:
        """What a worker does with its share of one step, or of several after another: loss, who it was, staleness."""
        return tf.stack([self._train_once(order[number]) for number in range(order.shape[0])])

    def _train_once(self, index: tf.Tensor) -> tf.Tensor:
        fetched = tf.identity(self._version)
        loss, gradients = self._gradients(*self._batch(index))
        with tf.control_dependencies([gradient for gradient in gradients if gradient is not None]):
            self._push(gradients)
            counted, done = self._count()
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        with tf.control_dependencies([done]):
            return tf.stack([loss, tf.cast(worker, tf.float32), tf.cast(counted - fetched, tf.float32)])

    def _batch(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Samples from the worker's own copy of the data."""
        inputs, targets = (
            tf.raw_ops.ResourceGather(resource=held.handle, indices=index, dtype=held.dtype)
            for held in (self._inputs, self._targets)
        )
        return inputs, targets

    def _count(self) -> tuple[tf.Tensor, tf.Tensor]:
        """One more update, of the variables and by this worker: how many there were of each."""
        counted, done = (
            tf.raw_ops.ResourceCountUpTo(resource=counter.handle, limit=NO_LIMIT, T=tf.int64)
            for counter in (self._version, self._done)
        )
        return counted, done

    def _push(self, gradients: list[tf.Tensor | None]) -> None:
        """Each gradient goes to its variable's server and is applied there, after the worker has clipped its own."""
        if (most := self._context.spec.clip) is not None:
            gradients = clip_gradients(gradients, most)
        if self._own_optimizer:
            self._strategy.run(self._apply_as_keras_does, args=(gradients,))
            return
        # Not through `apply`, which counts steps by reading and writing: two workers at once would count as one.
        learning_rate = self._optimizer.learning_rate
        for gradient, variable in zip(gradients, self._variables, strict=True):
            if gradient is not None:
                with tf.device(variable.value.device):
                    self._optimizer.update_step(gradient, variable, learning_rate)

    def _apply_as_keras_does(self, gradients: list[tf.Tensor | None]) -> None:
        # TensorFlow sums over the replicas of a worker, and finds where by the operation that made a gradient here.
        made_here = [None if gradient is None else tf.identity(gradient) for gradient in gradients]
        self._optimizer.apply(made_here, self._variables)

    def share(self, place: int) -> Share:
        """A whole step, by whichever workers were free."""
        return Share(0, self._context.spec.samples_per_step, self._makers[place])

    def losses(self) -> list[float]:
        """The mean over the shares of each step."""
        return [float(loss) for loss in self._answers]

    def details(self) -> dict[str, Any]:
        """What was done by whom; the chief itself holds no part of the model."""
        nothing = {"parameters": 0, "optimizer": 0}
        return {
            **super().details(),
            "held_bytes": nothing,
            "handed_out": [staleness.summary()["updates"] for staleness in self._staleness],
            "updates": int(self._version.numpy()),
            **self._made_again(),
        }

    def _made_again(self) -> dict[str, int]:
        """Samples of shares that were trained on twice: their worker was lost after its update, before its answer."""
        if self._context.spec.membership is None:
            return {}
        answered = sum(int(staleness.summary()["updates"]) for staleness in self._staleness)
        share = self._context.spec.samples_per_step // self._workers
        return {"samples_again": max(0, int(self._version.numpy()) - answered) * share}

    def close(self) -> None:
        """Sends every other process what it did; they end when this one has."""
        done = self._done_by_worker()
        everyone = Staleness.joined(self._staleness)
        for rank, connection in self._connections.items():
            index = rank - 1
            if index < self._workers:
                staleness = self._staleness[index].summary()
                held = {"parameters": 0, "optimizer": 0}
                send_details(connection, {"updates": done[index], "staleness": staleness, "held_bytes": held})
            else:
                send_details(connection, self._of_server(index - self._workers) | {"staleness": everyone.summary()})

    def _done_by_worker(self) -> list[int]:
        """Updates by each worker, as it counted them; one that was replaced has lost count."""
        if self._context.spec.membership is not None:
            return [int(staleness.summary()["updates"]) for staleness in self._staleness]
        return [int(count) for count in self._done.read_all()]

    def _of_server(self, server: int) -> dict[str, Any]:
        place = f"/job:ps/replica:0/task:{server}/"
        kinds = {"parameters": self._variables, "optimizer": self._optimizer.variables}
        here = {
            kind: [variable for variable in variables if place in variable.value.device]
            for kind, variables in kinds.items()
        }
        held = {
            kind: sum(variable.value.dtype.size * math.prod(variable.shape) for variable in variables)
            for kind, variables in here.items()
        }
        names = [variable.path for variable in here["parameters"]]
        return {"held_bytes": held, "variables": names, "updates": int(self._version.numpy())}


def _connect(context: Context) -> tuple[dict[int, socket.socket], tf.distribute.Strategy]:
    """Waits for all others and makes them one cluster."""
    with held_addresses(context) as addresses:
        connections = accept_members(context)
        members = tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster(context, addresses), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        return connections, tf.distribute.ParameterServerStrategy(members)


def accept_members(context: Context) -> dict[int, socket.socket]:
    """The chief's side: a connection to each other process, by rank."""
    assert context.rendezvous.listen_fd is not None
    connections: dict[int, socket.socket] = {}
    with socket.socket(fileno=os.dup(context.rendezvous.listen_fd)) as listener:
        listener.settimeout(context.spec.collective_timeout_seconds)
        while len(connections) < context.process.world - 1:
            connection, _ = listener.accept()
            connection.settimeout(context.spec.collective_timeout_seconds)
            connections[int(connection.recv(CHUNK_BYTES))] = connection
    return connections


def accept_newcomers(context: Context, connections: dict[int, socket.socket]) -> None:
    """Takes in processes that come in the place of others, as long as the chief runs."""
    assert context.rendezvous.listen_fd is not None
    with socket.socket(fileno=os.dup(context.rendezvous.listen_fd)) as listener:
        listener.settimeout(None)
        while True:
            connection, _ = listener.accept()
            connection.settimeout(context.spec.collective_timeout_seconds)
            connections[int(connection.recv(CHUNK_BYTES))] = connection


def connect_to_chief(context: Context) -> socket.socket:
    """The other side: TensorFlow's servers never return by themselves, so each waits for the chief to end."""
    connection = socket.create_connection(
        (context.rendezvous.host, context.rendezvous.port), context.spec.collective_timeout_seconds
    )
    connection.sendall(str(context.process.rank).encode())
    return connection


def send_details(connection: socket.socket, details: dict[str, Any]) -> None:
    """Sends a process what the record should say of it; one that was lost needs nothing."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(json.dumps(details).encode() + b"\n")


def receive_details(connection: socket.socket) -> dict[str, Any]:
    """Waits until the chief has ended and returns what it sent before."""
    connection.settimeout(None)
    message = b""
    while chunk := connection.recv(CHUNK_BYTES):
        message += chunk
    if not message.endswith(b"\n"):
        raise ConnectionError("the chief ended before it was done")
    return dict(json.loads(message))
