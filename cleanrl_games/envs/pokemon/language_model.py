"""A language model as expert, at any address that speaks OpenAI's chat format. Copy it and write your own prompt.

export LLM_URL=http://127.0.0.1:8000/v1 LLM_MODEL=my-model     # and LLM_KEY, if the address wants one
python cleanrl_games/bc_pokemon_impala.py --expert cleanrl_games.envs.pokemon.language_model:Agent --expert-timeout 30
--dagger-rounds 5"""

import base64
import io
import json
import os
import re
import urllib.request

from PIL import Image

from .env import ACTIONS

PROMPT = f"You play a Game Boy Advance game. Answer with one button and nothing else: {', '.join(ACTIONS)}."


class Agent:
    cache_by_state = True  # it keeps nothing between calls, so a screen that was seen before need not be paid for again

    def __init__(self):
        self.url, self.model, self.key = (os.environ.get(name, "") for name in ("LLM_URL", "LLM_MODEL", "LLM_KEY"))
        if not self.url or not self.model:
            raise RuntimeError(
                "Set LLM_URL to the address of an OpenAI-compatible server (ending in /v1) and LLM_MODEL to its model."
            )
        self.cost = {"tokens": 0}

    def __call__(self, observation, info):
        picture = io.BytesIO()
        Image.fromarray(observation).save(picture, "PNG")
        image = f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"
        content = [
            {"type": "text", "text": json.dumps(info, default=str)},
            {"type": "image_url", "image_url": {"url": image}},
        ]
        messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": content}]
        body = json.dumps({"model": self.model, "messages": messages, "max_tokens": 10}).encode()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.url.rstrip('/')}/chat/completions", body, headers), timeout=600
        ) as reply:
            answer = json.load(reply)
        self.cost["tokens"] += answer.get("usage", {}).get("total_tokens", 0)
        word = re.search(r"\b(" + "|".join(ACTIONS) + r")\b", answer["choices"][0]["message"]["content"].upper())
        return ACTIONS.index(word[1]) if word else -1  # no button in the answer: the episode is dropped and says so
