"""Episodes to and from Minari datasets, without loss: raw pixels (Minari's default is JPEG), labels and all that infos
say.

Minari's actions are the buttons that were pressed, so that its transitions are the game's; the expert's own choice is
in infos["expert_action"], an info in infos["json"], what the episode is about in the episode's metadata.
"""

import json
import warnings

import gymnasium as gym
import numpy as np

from .emulator import HEIGHT, WIDTH
from .env import ACTIONS
from .episodes import EpisodeError, read_episode, read_frames, write_arrays


def export_episodes(paths, dataset_id):
    """→ number of episodes written. One at a time: a dataset need not fit into memory."""
    import minari  # takes a second, and only these two functions need it
    from minari.data_collector import EpisodeBuffer

    dataset = None
    for number, path in enumerate(paths):
        episode = read_episode(path)
        if not episode.is_described:
            raise EpisodeError(
                f"{path}: it does not say which ROM and emulator it is from, so Minari could not either."
            )
        frames = np.concatenate(list(read_frames(path)))
        if len(frames) == len(episode):
            raise EpisodeError(
                f"{path}: Minari wants the observation after the last action, which this file does not have."
            )
        buffer = EpisodeBuffer(
            id=number,
            observations=frames,
            actions=episode.executed_actions,
            rewards=episode.rewards,
            terminations=episode.terminated,
            truncations=episode.truncated,
            infos={
                "expert_action": episode.actions,
                "json": [json.dumps(info, separators=(",", ":")) for info in episode.infos],
            },
        )
        if dataset is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that author, e-mail and permalink are not given
                dataset = minari.create_dataset_from_buffers(
                    dataset_id,
                    [buffer],
                    observation_space=gym.spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8),
                    action_space=gym.spaces.Discrete(len(ACTIONS)),
                    algorithm_name=str(episode.meta.get("expert", "unknown")),
                    data_format="hdf5",
                    jpeg_encoding=False,
                )
        else:
            dataset.update_dataset_from_buffer([buffer])
        dataset.storage.update_episode_metadata([{"meta_json": json.dumps(episode.meta)}], [number])
    return number + 1


def import_episodes(dataset_id, folder, name):
    """Writes `name(number)`.npz files into a folder → their paths"""
    import minari

    try:
        dataset = minari.load_dataset(dataset_id)
    except FileNotFoundError:
        raise EpisodeError(
            f"There is no Minari dataset {dataset_id!r} here; `minari list local` shows those that are."
        ) from None
    if dataset.storage.jpeg_encoding:
        raise EpisodeError(
            f"The Minari dataset {dataset_id!r} holds JPEG pictures, which are not what the game showed: export it "
            f"again."
        )
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for episode in dataset.iterate_episodes():
        (metadata,) = dataset.storage.get_episode_metadata([episode.id])
        if "meta_json" not in metadata or "expert_action" not in episode.infos or "json" not in episode.infos:
            raise EpisodeError(
                f"Episode {episode.id} of {dataset_id!r} does not say which ROM and emulator it is from: only "
                f"datasets that were exported "
                "here can be imported."
            )
        infos = [json.loads(text) for text in episode.infos["json"]]
        arrays = {
            "observations": np.asarray(episode.observations, np.uint8),
            "actions": np.asarray(episode.infos["expert_action"], np.int32),
            "executed_actions": np.asarray(episode.actions, np.int32),
            "rewards": np.asarray(episode.rewards, np.float32),
            "terminated": np.asarray(episode.terminations, bool),
            "truncated": np.asarray(episode.truncations, bool),
            "infos_json": np.asarray(json.dumps(infos, separators=(",", ":"))),
            "episode_return": np.float32(np.sum(episode.rewards)),
            "episode_length": np.int32(len(episode.actions)),
            "meta_json": np.asarray(metadata["meta_json"]),
        }
        paths.append(folder / name(len(paths)))
        write_arrays(paths[-1], arrays)
        read_episode(paths[-1])
    return paths
