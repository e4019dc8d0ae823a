"""Texts of shapes from a seed: valid ones with every feature, ones that break a rule, and damaged ones."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

ELEMENT_TYPES = re.findall(
    r"\S+",
    """pred s1 s2 s4 s8 s16 s32 s64 u1 u2 u4 u8 u16 u32 u64 f16 bf16 f32 f64 f8e5m2 f8e4m3 f8e4m3fn
    f8e4m3b11fnuz f8e3m4 f8e5m2fnuz f8e4m3fnuz f8e8m0fnu f6e3m2fn f6e2m3fn f4e2m1fn c64 c128""",
)

#: Texts as JAX and XLA print them for TPU, GPU and CPU programs.
REAL_TEXTS = (
    """
f32[]|s32[]|pred[]|bf16[]{:T(256)}|f32[]{:T(128)}|s32[]{:T(128)S(6)}|u32[]{:T(128)S(1)}|f32[1]{0:T(128)}
f32[8,128]{1,0:T(8,128)}|bf16[8,128]{1,0:T(8,128)(2,1)}|s8[32,128]{1,0:T(8,128)(4,1)}|pred[8,128]{1,0:T(8,128)(4,1)}
bf16[1024,1000]{1,0:T(8,128)(2,1)}|f32[3,5]{1,0:T(2,2)}|f32[2,3,5]{0,1,2:T(2,2)}|bf16[2048]{0:T(1024)(128)(2,1)}
bf16[4096,4096]{1,0:T(8,128)(2,1)}|bf16[4096,4096]{0,1:T(8,128)(2,1)S(1)}|f32[4096]{0:T(1024)}|s32[7]{0:T(128)S(5)}
bf16[256,56,56,64]{0,3,2,1:T(8,128)(2,1)}|f32[256,1000]{0,1:T(8,128)}|f32[7,7,3,64]{3,2,1,0:T(8,128)}
bf16[16,2048,32,128]{3,1,2,0:T(8,128)(2,1)}|bf16[1,1,128]{2,1,0:T(1,128)}|bf16[1,4096]{1,0:T(2,128)(2,1)}
f32[1,1]{1,0:T(1,128)S(1)}|s4[64,64]{1,0:E(4)}|s4[4096,4096]{1,0:T(8,128)(8,1)E(4)}|u4[128]{0:T(1024)(128)(8,1)E(4)}
u2[10]{0:E(2)}|s1[8,8]{1,0:E(1)}|f4e2m1fn[128,128]{1,0:T(32,128)(8,1)E(4)}|pred[1024]{0:T(1024)(128)(4,1)E(32)}
f32[<=128,64]{1,0:T(8,128)M(1024)}|s32[<=10]{0}|f32[?,784]{1,0}|f32[?]{0}|bf16[<=8,<=16]{1,0:T(8,128)(2,1)}
(f32[], s32[])|(bf16[8,128]{1,0:T(8,128)(2,1)}, token[])|((f32[2]{0}, f32[3]{0}), s32[], token[], opaque[])
(f32[1]{0}, f32[2]{0}, f32[3]{0}, f32[4]{0}, f32[5]{0}, /*index=5*/f32[6]{0}, f32[7]{0})|()|((), ())
token[]|opaque[]|b(f32[8,128]{1,0:T(8,128)})|(b(s32[2]{0}), u32[]{:S(2)})
f32[64,128]{1,0:T(8,128)L(1024)}|f32[100]{0:T(8)L(64)}|f32[10]{0:L(16)}|bf16[8,256]{1,0:T(8,128)(2,1)SC(1:128)}
f32[16,16]{1,0:SC(0:4,8)(1:2)}|bf16[5,7]{1,0:T(*,4)}|f32[2,3,4]{2,1,0:T(*,*,5)(2,1)}|c64[10,10]{1,0}|c128[3]{0}
f8e4m3fn[128,512]{1,0:T(8,128)(4,1)}|f8e5m2[128,512]{1,0}|f8e4m3b11fnuz[8]{0}|f8e8m0fnu[8]{0}|f64[3,3]{0,1}
bf16[8,32,512,128]{3,2,1,0:T(8,128)(2,1)S(3)}|s64[0]{0}|f32[0,5]{1,0}|f32[5,0]{1,0:T(8,128)}|u8[16777216]{0}
""".strip()
    .replace("\n", "|")
    .split("|")
)

_GAPS = (" ", "\t", "\n", "\r\n", "  ", "/* c */", "/**/", "// c\n", "// c\r", " /*x*/ ")
_SCRAPS = [
    *"()[]{},:*#?<=-+~/.012x_TLESDMPb\x0b\0é\u0663",
    *re.findall(
        r"\S+",
        """<= -1 -0 07 2.0 1e3 2x3 SC f32 s4 tuple token opaque tuple[] token[] f32[2] {0} T(2) E(4) S(300) L(0)
        9223372036854775807 9223372036854775808 18446744073709551616 -9223372036854775808""",
    ),
]


class TextMaker:
    """Makes texts as lists of tokens, so that gaps and damage fall between tokens."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def valid(self) -> str:
        """Make the text of a valid shape as XLA's grammar has it, canonical or not."""
        return self.spaced(self.shape(depth=0, odd=0.0))

    def odd(self) -> str:
        """Make a text that follows the grammar but may break a rule."""
        return self.spaced(self.shape(depth=0, odd=0.15))

    def damaged(self) -> str:
        """Make a text with tokens lost, doubled, moved or replaced."""
        tokens = self.shape(depth=0, odd=0.0)
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            at = self.random.randrange(len(tokens) + 1)
            kind = self.random.randrange(4)
            if kind == 0 or at == len(tokens):
                tokens.insert(at, self.random.choice(_SCRAPS))
            elif kind == 1:
                del tokens[at]
            elif kind == 2:
                tokens[at] = self.random.choice(_SCRAPS)
            else:
                other = self.random.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]
        return self.spaced(tokens)

    def spaced(self, tokens: list[str]) -> str:
        if self.chance(0.7):
            return "".join(tokens)
        pieces = []
        for token in tokens:
            if self.chance(0.3):
                pieces.append(self.random.choice(_GAPS))
            pieces.append(token)
        return "".join(pieces)

    def shape(self, depth: int, odd: float) -> list[str]:
        kind = self.random.random()
        if depth < 4 and kind < 0.25:
            tokens = ["("]
            for i in range(self.random.choice((0, 1, 2, 3, 7, 12) if depth < 2 else (0, 1, 2))):
                tokens += [","] * (i > 0) + self.shape(depth + 1, odd)
            return [*tokens, ")"]
        if kind < 0.3:
            return [self.random.choice(("token", "opaque")), "[", "]"]
        if kind < 0.35:
            return ["b", "(", *self.array(odd), ")"]
        return self.array(odd)

    def array(self, odd: float) -> list[str]:
        rank = self.random.choice((0, 1, 1, 2, 2, 2, 3, 4, 6))
        tokens = [self.random.choice(ELEMENT_TYPES), "["]
        sizes = [self.random.choice((0, 1, 2, 3, 5, 7, 8, 16, 100, 128, 1000)) for _ in range(rank)]
        for i, size in enumerate(sizes):
            tokens += [","] * (i > 0)
            if self.chance(odd):
                tokens.append(self.random.choice(("-1", "4611686018427387904", "9223372036854775808", "1e3", "")))
            elif self.chance(0.05):
                tokens.append("?")
                sizes[i] = 0
            else:
                tokens += ["<="] * self.chance(0.1) + [str(size)]
        tokens.append("]")
        if self.chance(0.75):
            tokens += self.layout(rank, sizes, odd)
        return [token for token in tokens if token]

    def layout(self, rank: int, sizes: list[int], odd: float) -> list[str]:
        order = self.random.sample(range(rank), rank)
        if order and self.chance(odd):
            order[self.random.randrange(rank)] = self.random.choice((0, 1, rank, -1))
        if self.chance(odd):
            order.append(rank)
        tokens = ["{", *_listed(order)]
        attributes = self.attributes(rank, order, sizes, odd)
        if not attributes and not order:
            return []
        if attributes or self.chance(0.02):
            tokens += [":", *attributes]
        return [*tokens, "}"]

    def attributes(self, rank: int, order: list[int], sizes: list[int], odd: float) -> list[str]:
        tokens: list[str] = []
        makers: tuple[tuple[float, Callable[[], list[str]]], ...] = (
            (0.03, lambda: ["D", "(", *_listed(["D"] * self.random.randrange(3)), ")"]),
            (0.5, lambda: ["T", *self.tiles(rank, odd)]),
            (0.15, lambda: ["L", *self.one((1, 2, 8, 1024), ("0", "-3", "x"), odd)]),
            (odd / 4, lambda: ["#", "(", "u32", ")"]),
            (odd / 4, lambda: ["*", "(", "u32", ")"]),
            (0.2, lambda: ["E", *self.one((0, 1, 2, 4, 8, 32, 7), ("-4", "9223372036854775808"), odd)]),
            (0.2, lambda: ["S", *self.one((0, 1, 5, 127, -128, -1), ("128", "300", "-129", "x"), odd)]),
            (0.15, lambda: self.splits(rank, order, sizes, odd)),
            (odd / 8, lambda: ["P", "(", "f32", "[", "]", ")"]),
            (0.1, lambda: ["M", *self.one((0, 4, 1024, -5), ("x", ""), odd)]),
        )
        for probability, make in makers:
            if self.chance(probability):
                tokens += make()
        return tokens

    def one(self, good: tuple[int, ...], bad: tuple[str, ...], odd: float) -> list[str]:
        return ["(", self.random.choice(bad) if self.chance(odd) else str(self.random.choice(good)), ")"]

    def tiles(self, rank: int, odd: float) -> list[str]:
        tokens: list[str] = []
        for _ in range(self.random.choice((1, 1, 2, 3))):
            length = self.random.choice((1, 2, max(rank, 1), rank + 2))
            tile = [str(self.random.choice((1, 2, 3, 4, 8, 128))) for _ in range(length)]
            for i in range(length - 1):
                if self.chance(0.15):
                    tile[i] = "*"
            if self.chance(odd):
                tile[self.random.randrange(length)] = self.random.choice(("*", "0", "", "9223372036854775808"))
            tokens += ["(", *_listed([size for size in tile if size]), ")"]
        return tokens

    def splits(self, rank: int, order: list[int], sizes: list[int], odd: float) -> list[str]:
        tokens = ["SC"]
        for physical in self.random.sample(range(rank), self.random.randint(0, rank)):
            logical = order[rank - 1 - physical] if len(order) >= rank else 0
            size = sizes[logical] if 0 <= logical < rank else 1
            cuts = sorted(self.random.sample(range(1, max(size, 1)), min(2, max(size - 1, 0))))
            if self.chance(odd):
                cuts = self.random.choice(([0], [2, 2], [3, 1], [size], [-1]))
            if self.chance(odd):
                physical = self.random.choice((0, rank, -1))
            tokens += ["(", str(physical), ":", *_listed(cuts), ")"]
        return tokens if len(tokens) > 1 else []


def _listed(values: list[int] | list[str]) -> list[str]:
    tokens: list[str] = []
    for i, value in enumerate(values):
        tokens += [","] * (i > 0) + [str(value)]
    return tokens
