"""A benchmark's films: of every configuration the first filmed success and the first failure."""

from collections.abc import Sequence
from pathlib import Path

from jepa_wm.control.episode import Episode, load_episode
from jepa_wm.control.statistics import Measure
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench_names import SEEDS
from jepa_wm.experiments.bench_pages import Picture
from jepa_wm.experiments.bench_records import CellResult
from jepa_wm.experiments.bench_summary import Configuration
from jepa_wm.viz.frames import Film, film_frames
from jepa_wm.viz.video import require_video, write_video

MOST = 24  # films of a report


def save_films(results: Sequence[CellResult], found: Sequence[Configuration]) -> list[Picture]:
    """Write films of chosen episodes beside their records; those that are there are kept."""
    by_id = {result.cell.id: result for result in results}
    films: list[Picture] = []
    for one in found:
        wanted = [True, False]
        for cell in one.cells:
            for path in sorted((by_id[cell.id].folder / "episodes").glob("*.npz")):
                episode = load_episode(path) if wanted else None
                if episode is None or episode.success not in wanted or episode.presolved:
                    continue
                wanted.remove(episode.success)
                films.append(_film(by_id[cell.id], one, path, episode))
    return films[:MOST]


def _film(result: CellResult, one: Configuration, path: Path, episode: Episode) -> Picture:
    cell = result.cell
    names = [path.with_suffix(suffix) for suffix in (".mp4", ".gif")]
    target = next((name for name in names if name.exists()), None)
    if target is None:
        task = cell.options["task"]
        film = Film(measures=tuple(Measure(**told) for told in task["measures"][:3]))
        target = write_video(
            path.with_suffix(_suffix()), film_frames([episode], film), float(task["fps"])
        )
    ended = "success" if episode.success else "failure"
    seeds = [f"{name.replace('_', ' ')} {cell.axes[name]}" for name in SEEDS if name in cell.axes]
    words = [one.name, *seeds, f"episode {episode.id}: {ended}"]
    return Picture(target, ", ".join(words))


def _suffix() -> str:
    try:
        require_video("mp4")
    except ConfigError:
        return ".gif"
    return ".mp4"
