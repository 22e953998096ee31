"""The vocabulary of written mathematics: which characters and commands print the same thing."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = words("abs arccos arccot arcsin arctan cbrt cos cosh cot coth csc exp lg ln log sec sin sinh sqrt tan tanh")
FUNCTION_NAMES = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "ctg": "cot", "arctg": "arctan",
}  # fmt: skip
CONSTANTS = {
    "pi": "pi", "infty": "infty", "infinity": "infty", "inf": "infty", "oo": "infty", "emptyset": "emptyset",
}  # fmt: skip
GREEK = words(
    "Delta Gamma Lambda Omega Phi Pi Psi Sigma Theta Upsilon Xi alpha beta chi delta ell epsilon eta gamma "
    "hbar iota kappa lambda mu nu omega phi psi rho sigma tau theta upsilon varepsilon varphi varrho vartheta "
    "xi zeta"
)
SEPARATOR_WORDS = {
    "and": "and", "or": "or", "或": "or", "或者": "or", "和": "and", "与": "and", "及": "and", "以及": "and",
}  # fmt: skip
# Commands that set their argument in another font.
FONT_COMMANDS = words(
    "textbf textit textrm textsf texttt textnormal text mbox hbox emph underline mathrm mathbf mathit mathsf "
    "mathtt mathnormal boldsymbol bm bold operatorname* operatorname"
)
# Commands whose argument is part of a name.
OPAQUE_COMMANDS = words("bar hat mathbb mathcal mathfrak mathscr overline overrightarrow tilde vec widehat")
# Commands that print nothing, or only a size or a space.
IGNORED = words(
    "Big Bigg Biggl Biggr Bigl Bigr Large bf big bigg biggl biggr bigl bigr displaystyle enspace hfill hline "
    "it large left limits medspace noindent nolimits nonumber normalsize notag qquad quad right rm scriptstyle "
    "sf small textstyle thickspace thinspace tt"
)
OPERATORS = {
    "cdot": "*", "times": "*", "ast": "*", "div": "/", "le": "<=", "leq": "<=", "leqslant": "<=", "leqq": "<=",
    "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=", "lt": "<", "gt": ">", "ne": "!=", "neq": "!=",
    "approx": "~", "simeq": "~", "in": "in", "cup": "cup", "bigcup": "cup", "cap": "cap", "setminus": "minus",
    "backslash": "minus", "pm": "pm", "mp": "mp", "mid": "|", "vert": "|", "lvert": "|", "rvert": "|", "colon": ":",
    "equiv": "equiv", "sim": "sim", "to": "to", "rightarrow": "to", 'prime': "'", "land": "and", "lor": "or",
    "wedge": "and", "vee": "or",
}  # fmt: skip
SAME_COMMAND = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom",
    "varnothing": "emptyset", "empty": "emptyset", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots",
    "dotsb": "ldots", "vdots": "ldots", "imath": "i", "lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]",
    "degree": "circ",
}  # fmt: skip
SHORT_WORDS = words("an as at be by do go he if in is it my no of on so to up us we")
UNIT_WORDS = words("am cm dm ev ft gb hr hz kb kg kj km kv kw lb mb mg mi ml mm ms mv nd nm oz pm pt rd st th yd")
CURRENCY = {
    "$": "dollar", "€": "euro", "£": "pound", "¥": "yuan", "￥": "yuan", "₹": "rupee", "₽": "ruble", "₩": "won",
}  # fmt: skip
UNICODE = {
    "−": "-", "–": "-", "—": "-", "﹣": "-", "－": "-", "‐": "-", "‑": "-", "×": "*", "·": "*", "⋅": "*", "∙": "*",
    "•": "*", "∗": "*", "÷": "/", "∕": "/", "⁄": "/", "≤": "<=", "≦": "<=", "⩽": "<=", "≥": ">=", "≧": ">=",
    "⩾": ">=", "≠": "\\ne ", "≈": "\\approx ", "±": "\\pm ", "∓": "\\mp ", "∞": "\\infty ", "π": "\\pi ",
    "𝜋": "\\pi ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "∅": "\\emptyset ", "Ø": "\\emptyset ",
    "°": "^\\circ ", "º": "^\\circ ", "˚": "^\\circ ", '′': "'", '’': "'", '‘': "'", "…": "\\ldots ",
    "⋯": "\\ldots ", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℚ": "\\mathbb{Q}", "ℕ": "\\mathbb{N}",
    "ℂ": "\\mathbb{C}", "√": " sqrt ", "∛": "\\cbrt ", "∖": "\\setminus ", "⟨": "\\langle ", "⟩": "\\rangle ",
    "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "，": ",", "；": ";", "：": ":", "、": ",",
    "。": ".", "％": "\\%", "（": "(", "）": ")", "［": "[", "］": "]", "【": "[", "】": "]", "｛": "{", "｝": "}",
    "＝": "=", "＋": "+", "＜": "<", "＞": ">", "｜": "|", "∣": "|", "℃": "^\\circ C",
    "∑": "\\sum ", "∏": "\\prod ",
    "∫": "\\int ", "→": "\\to ", "⇒": "\\to ", "α": "\\alpha ", "β": "\\beta ", "γ": "\\gamma ", "δ": "\\delta ",
    "ε": "\\epsilon ", "ζ": "\\zeta ", "η": "\\eta ", "θ": "\\theta ", "ι": "\\iota ", "κ": "\\kappa ",
    "λ": "\\lambda ", "μ": "\\mu ", "ν": "\\nu ", "ξ": "\\xi ", "ρ": "\\rho ", "σ": "\\sigma ", "τ": "\\tau ",
    "υ": "\\upsilon ", "φ": "\\phi ", "χ": "\\chi ", "ψ": "\\psi ", "ω": "\\omega ", "Γ": "\\Gamma ",
    "Δ": "\\Delta ", "Θ": "\\Theta ", "Λ": "\\Lambda ", "Ξ": "\\Xi ", "Σ": "\\Sigma ", "Φ": "\\Phi ", "Ψ": "\\Psi ",
    "Ω": "\\Omega ",
}  # fmt: skip
SUPERSCRIPTS = {
    "⁰": "0", "¹": "1", "²": "2", "³": "3", "⁴": "4", "⁵": "5", "⁶": "6", "⁷": "7", "⁸": "8", "⁹": "9", "⁺": "+",
    "⁻": "-", "⁽": "(", "⁾": ")", "ⁿ": "n", "ⁱ": "i", "ˣ": "x",
}  # fmt: skip
SUBSCRIPTS = {
    "₀": "0", "₁": "1", "₂": "2", "₃": "3", "₄": "4", "₅": "5", "₆": "6", "₇": "7", "₈": "8", "₉": "9", "₊": "+",
    "₋": "-", "₍": "(", "₎": ")", "ₙ": "n", "ₖ": "k", "ₘ": "m",
}  # fmt: skip
