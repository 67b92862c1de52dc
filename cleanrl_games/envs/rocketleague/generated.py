"""An approximate soccar arena made from its known measures, for machines that can neither fetch nor find the real
meshes.

Floor, ceiling and side walls are planes inside RocketSim. Written here: the ramps along all walls, the corners, the
back walls with their goal mouths, and the goals. The curves are circles of radius 256, which is close, not equal.
"""

import os
import shutil
from itertools import pairwise

import numpy as np

UNIT = 50.0  # game units per unit in a .cmf file
SIDE, BACK, CORNER, HEIGHT = 4096.0, 5120.0, 8064.0, 2048.0
GOAL_HALF_WIDTH, GOAL_HEIGHT, GOAL_BACK = 892.755, 642.775, 6000.0
RAMP_RADIUS, RAMP_PIECES = 256.0, 8


def wall_profile():
    """[(distance from the wall, height)] from the floor up the wall to the ceiling"""
    angles = np.linspace(0.0, np.pi / 2, RAMP_PIECES + 1)
    ramp = [(RAMP_RADIUS * (1 - np.sin(a)), RAMP_RADIUS * (1 - np.cos(a))) for a in angles]
    return [*ramp, (0.0, GOAL_HEIGHT), *[(d, HEIGHT - z) for d, z in reversed(ramp)]]


def outline(distance):
    """The arena's eight corners from above, pulled inwards by `distance`, with the goal posts on both back walls"""
    side, back, corner = SIDE - distance, BACK - distance, CORNER - distance * np.sqrt(2)
    quarter = [(side, corner - side), (corner - back, back), (GOAL_HALF_WIDTH, back)]
    right = [(x, -y) for x, y in reversed(quarter)] + quarter
    return right + [(-x, y) for x, y in reversed(right)]


def triangles():
    """(T, 3, 3) corners of all triangles, in game units"""
    found = []

    def quad(a, b, c, d):
        found.extend([(a, b, c), (a, c, d)])

    profile = wall_profile()
    rings = [[(x, y, z) for x, y in outline(distance)] for distance, z in profile]
    for low, high in pairwise(rings):
        for i in range(len(low)):
            j = (i + 1) % len(low)
            mouth = abs(low[i][0]) == abs(low[j][0]) == GOAL_HALF_WIDTH
            if not (mouth and low[i][2] < GOAL_HEIGHT):
                quad(low[i], low[j], high[j], high[i])
    for end in (1, -1):
        for post in (GOAL_HALF_WIDTH, -GOAL_HALF_WIDTH):
            quad(
                (post, end * BACK, 0.0),
                (post, end * GOAL_BACK, 0.0),
                (post, end * GOAL_BACK, GOAL_HEIGHT),
                (post, end * BACK, GOAL_HEIGHT),
            )
            # the cut face where the floor ramp ends at a post
            for (d, z), (e, w) in pairwise(profile[: RAMP_PIECES + 1]):
                found.append(((post, end * BACK, 0.0), (post, end * (BACK - d), z), (post, end * (BACK - e), w)))
        left, right = -GOAL_HALF_WIDTH, GOAL_HALF_WIDTH
        quad(
            *[
                (x, end * y, GOAL_HEIGHT)
                for x, y in ((left, BACK), (right, BACK), (right, GOAL_BACK), (left, GOAL_BACK))
            ]
        )
        quad(
            *[
                (x, end * GOAL_BACK, z)
                for x, z in ((left, 0.0), (right, 0.0), (right, GOAL_HEIGHT), (left, GOAL_HEIGHT))
            ]
        )
    return np.array(found, np.float32)


def write_meshes(cache):
    """Writes <cache>/generated-meshes/soccar/mesh_0.cmf by way of a temporary folder → the mesh folder"""
    final = cache / "generated-meshes"
    work = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    corners = triangles().reshape(-1, 3)
    content = (
        np.array([len(corners) // 3, len(corners)], "<i4").tobytes() + np.arange(len(corners), dtype="<i4").tobytes()
    )
    content += (corners / UNIT).astype("<f4").tobytes()
    target = final / "soccar" / "mesh_0.cmf"
    if target.is_file() and target.read_bytes() == content:
        return final
    try:
        (work / "soccar").mkdir(parents=True)
        (work / "soccar" / "mesh_0.cmf").write_bytes(content)
        final.mkdir(exist_ok=True)
        (final / "soccar").mkdir(exist_ok=True)
        os.replace(work / "soccar" / "mesh_0.cmf", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final
