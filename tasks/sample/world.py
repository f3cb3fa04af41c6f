"""The made-up web that sample logs are about: topics, hosts with sections and pages, and a URL's topic.

Everything is read off small lists of words, so that a person can judge by eye whether two pages belong together.
Hosts end in `.example`, which is reserved: no real site is meant. Pages are numbered 0..M-1, the pages of a section
one after the other, the most visited first; page 0 of a section is its front, `/recipes`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class Words(NamedTuple):
    """The words of one topic, each separated by spaces: 4 hosts, 6 sections, 12 subjects of pages."""

    hosts: str
    sections: str
    subjects: str


WORDS = {
    "cooking": Words(
        "kitchen-table lemon-and-thyme slow-pot pepper-mill",
        "recipes baking techniques soups dinners preserves",
        "lemon-tart sourdough-bread tomato-soup roast-chicken apple-pie mushroom-risotto pancakes beef-stew "
        "garlic-butter chocolate-cake fish-curry plum-jam",
    ),
    "gardening": Words(
        "kitchen-garden green-fingers hedge-and-border potting-shed",
        "vegetables flowers pruning soil greenhouse calendar",
        "tomato-seedlings rose-bushes compost-heap raised-beds apple-trees lawn-care herb-pots garden-pond "
        "slug-control tulip-bulbs bean-poles hedge-cutting",
    ),
    "football": Words(
        "corner-flag terrace-talk top-of-the-table penalty-spot",
        "matches transfers clubs tactics opinion fixtures",
        "cup-final goalkeeper offside-rule derby-day free-kicks relegation-battle midfield-press late-winner "
        "penalty-shootout new-manager youth-academy red-card",
    ),
    "travel": Words(
        "window-seat far-and-slow coast-road city-breaks",
        "destinations hotels itineraries trains islands advice",
        "lisbon-weekend island-ferries night-train alpine-hut old-town-walk packing-list harbour-hotel desert-road "
        "airport-transfer street-markets mountain-pass beach-camping",
    ),
    "cars": Words(
        "fourth-gear car-park-tales road-test torque-weekly",
        "reviews electric repairs used-cars classics driving",
        "charging-range family-estate brake-pads hot-hatch gearbox-noise winter-tyres city-car sports-coupe "
        "oil-change roof-box hybrid-suv rust-treatment",
    ),
    "photography": Words(
        "aperture-club golden-hour contact-sheet darkroom-notes",
        "cameras lenses portraits landscapes editing film",
        "wide-angle-lens long-exposure tripod street-portraits bird-photos colour-balance macro-shots flash-setup "
        "black-and-white camera-bag night-sky raw-files",
    ),
    "cycling": Words(
        "spoke-and-chain two-wheels-daily hill-climb bike-lane",
        "road gravel commuting maintenance races routes",
        "chain-cleaning gravel-wheels commuter-bike climbing-pace puncture-repair saddle-height mountain-stage "
        "carbon-frame bike-lights coastal-loop disc-brakes training-ride",
    ),
    "astronomy": Words(
        "night-sky-diary small-telescope dark-site orbit-log",
        "planets telescopes missions stargazing galaxies events",
        "saturn-rings lunar-eclipse meteor-shower mars-rover double-stars comet-watch eyepiece-guide andromeda-galaxy "
        "solar-filter space-station jupiter-moons star-charts",
    ),
    "music": Words(
        "second-verse vinyl-crate practice-room open-mic",
        "albums concerts guitars piano festivals interviews",
        "bass-lines vinyl-pressing chord-changes festival-line-up piano-scales debut-album drum-kit folk-session "
        "string-quartet guitar-pedals live-recording choir-practice",
    ),
    "films": Words(
        "aisle-seat closing-credits matinee-post reel-and-screen",
        "reviews directors series festivals classics trailers",
        "silent-comedy heist-film final-season opening-scene space-opera courtroom-drama film-score ghost-story "
        "short-films box-office animated-feature plot-twist",
    ),
    "books": Words(
        "dog-eared reading-lamp library-stairs margin-notes",
        "fiction crime poetry history authors book-clubs",
        "debut-novel locked-room short-stories reading-list family-saga sea-voyage translated-novel "
        "poetry-collection unreliable-narrator letters-and-diaries second-hand-finds long-read",
    ),
    "parenting": Words(
        "bedtime-story small-steps school-run noisy-house",
        "babies school sleep health play teenagers",
        "night-feeds first-words lunch-box potty-training screen-time bedtime-routine birthday-party homework-help "
        "pushchair teething-pain picky-eaters school-bag",
    ),
    "finance": Words(
        "penny-by-penny household-ledger plain-interest rainy-day-fund",
        "savings mortgages pensions taxes investing budgeting",
        "fixed-rate index-funds tax-return emergency-fund credit-card first-mortgage pension-gap inflation-cost "
        "dividend-income household-budget student-loan bank-switch",
    ),
    "fitness": Words(
        "warm-up-daily rep-and-rest morning-stretch kettle-and-bell",
        "strength running yoga nutrition injuries programmes",
        "push-ups marathon-plan hip-mobility protein-breakfast knee-pain interval-run deadlift-form rest-day "
        "yoga-flow shoulder-press foam-roller five-kilometre",
    ),
    "computers": Words(
        "blinking-cursor spare-parts-bin terminal-window silent-fan",
        "laptops components linux networking security programming",
        "quiet-cooling mechanical-keyboard backup-drive kernel-update home-router password-manager graphics-card "
        "laptop-battery file-server shell-scripts memory-upgrade usb-hub",
    ),
    "gaming": Words(
        "save-point second-player pixel-tavern boss-fight",
        "reviews strategy role-playing consoles puzzles esports",
        "boss-guide city-builder speed-run side-quests co-op-campaign turn-based-war handheld-console skill-tree "
        "puzzle-rooms open-world racing-sim card-deck",
    ),
    "fashion": Words(
        "hem-and-cuff capsule-wardrobe fitting-room thread-count",
        "shoes coats accessories vintage sewing street-style",
        "linen-shirt wool-coat leather-boots denim-jacket silk-scarf summer-dress white-trainers tailored-suit "
        "vintage-bag knit-jumper rain-jacket pleated-skirt",
    ),
    "homes": Words(
        "paint-and-plaster level-and-square cosy-corner floor-plan",
        "kitchens bathrooms tools decorating furniture energy",
        "floor-tiles cordless-drill heat-pump wall-paint book-shelves loft-insulation oak-table leaking-tap "
        "window-frames small-bathroom curtain-rail plaster-crack",
    ),
    "pets": Words(
        "muddy-paws cat-on-the-sill feed-bowl wagging-tail",
        "dogs cats health training aquariums birds",
        "puppy-biting cat-litter dog-lead fish-tank rabbit-hutch vet-visit parrot-cage flea-treatment kitten-food "
        "recall-training guinea-pigs old-dog",
    ),
    "sailing": Words(
        "fair-wind-log tiller-and-tide harbour-master blue-ensign",
        "dinghies cruising navigation racing boatyard weather",
        "reef-knots tide-tables hull-paint harbour-entry spinnaker-trim anchor-chain channel-crossing life-jacket "
        "mast-rigging night-watch wind-forecast bilge-pump",
    ),
    "chess": Words(
        "queens-gambit-daily back-rank knight-move endgame-table",
        "openings endgames tournaments puzzles players lessons",
        "rook-endings sicilian-defence mate-in-two world-championship king-safety pawn-structure blitz-game "
        "opposite-bishops simultaneous-exhibition time-trouble knight-fork opening-trap",
    ),
    "birds": Words(
        "dawn-chorus hide-and-hedge field-glass marsh-notes",
        "sightings garden-birds migration songs reserves identification",
        "barn-owl feeder-mix swallow-arrival nest-box wader-roost goldfinch-song sea-cliffs kingfisher heron-colony "
        "binocular-choice red-kite winter-geese",
    ),
    "science": Words(
        "petri-and-pen lab-bench-news small-proof field-sample",
        "physics biology chemistry climate archaeology health",
        "gene-editing quantum-clock ice-cores bronze-age-hoard gut-bacteria fossil-find vaccine-trial ocean-currents "
        "particle-decay memory-study volcanic-ash protein-folding",
    ),
    "crafts": Words(
        "yarn-basket glue-and-grain kiln-shelf needle-case",
        "knitting woodwork pottery quilting paper leather",
        "cable-stitch dovetail-joint glaze-recipe patchwork-square paper-flowers leather-wallet sock-pattern "
        "carving-knife tea-bowl wool-dyeing book-binding cross-stitch",
    ),
}
TOPICS = tuple(WORDS)
HOST_PREFIXES = ("", "daily-", "my-", "the-", "about-", "all-", "best-", "simply-", "world-", "club-")
QUALIFIERS = (
    "", "easy-", "best-", "simple-", "first-", "favourite-", "classic-", "weekend-", "spring-", "summer-",
    "autumn-", "winter-", "local-", "budget-", "perfect-", "new-",
)  # fmt: skip
FORMS = (
    "", "-guide", "-tips", "-explained", "-questions", "-pictures", "-for-beginners", "-step-by-step", "-mistakes",
    "-history", "-compared", "-news",
)  # fmt: skip
NUM_SUBJECTS = 12
MOST_HOSTS = 4 * len(HOST_PREFIXES)  # of a topic
MOST_SECTIONS = 6 * MOST_HOSTS  # of a topic


def host_name(topic: str, number: int) -> str:
    """The host `number` (0..39) of a topic, without `www.`: `pepper-mill.example`, `daily-pepper-mill.example`."""
    bases = WORDS[topic].hosts.split()
    return f"{HOST_PREFIXES[number // len(bases)]}{bases[number % len(bases)]}.example"


_TOPIC_OF_HOST = {host_name(topic, number): topic for topic in TOPICS for number in range(MOST_HOSTS)}


def topic_of_url(url: str) -> str | None:
    """The topic of a URL that a sample log has, in any of its spellings or canonical; None for any other URL."""
    host = url.partition("://")[2] or url
    for end in "/?#":
        host = host.partition(end)[0]
    return _TOPIC_OF_HOST.get(host.lower().removesuffix(":443").removeprefix("www."))


@dataclass(frozen=True)
class World:
    """All pages. A section is `topic * sections_per_topic + k`; its pages are consecutive.

    section_start  int64[S+1]  first page of each section, and the number of pages
    section_host   int32[S]    host of each section
    hosts          H names without `www.`
    paths          M strings: `/recipes/lemon-tart`
    """

    sections_per_topic: int
    section_start: np.ndarray
    section_host: np.ndarray
    hosts: list[str]
    paths: pa.Array

    @property
    def num_items(self) -> int:
        return len(self.paths)


def make_world(items: int) -> World:
    """The world with so many pages, the same at every call. Takes about 1 s and 40 MB a million."""
    sections_per_topic = min(MOST_SECTIONS, max(1, round(math.sqrt(items / len(TOPICS)) / 2)))
    hosts_per_topic = min(MOST_HOSTS, math.ceil(sections_per_topic / 3))
    num_sections = sections_per_topic * len(TOPICS)
    section_start = np.arange(num_sections + 1, dtype=np.int64) * items // num_sections
    chunks, section_host = [], []
    for topic_number, topic in enumerate(TOPICS):
        names, subjects = WORDS[topic].sections.split(), WORDS[topic].subjects.split()
        for k in range(sections_per_topic):
            section = topic_number * sections_per_topic + k
            section_host.append(topic_number * hosts_per_topic + k % hosts_per_topic)
            num_pages = int(section_start[section + 1] - section_start[section])
            name = names[k // hosts_per_topic]
            shifted = subjects[5 * k % NUM_SUBJECTS :] + subjects[: 5 * k % NUM_SUBJECTS]
            pages = [f"/{name}"] + [f"/{name}/{page_name(shifted, number)}" for number in range(num_pages - 1)]
            chunks.append(pa.array(pages, pa.string()))
    hosts = [host_name(topic, number) for topic in TOPICS for number in range(hosts_per_topic)]
    return World(sections_per_topic, section_start, np.array(section_host, np.int32), hosts, pa.concat_arrays(chunks))


def page_name(subjects: list[str], number: int) -> str:
    """Page `number` (0, 1, ...) of a section: `lemon-tart`, later `easy-lemon-tart`, `easy-lemon-tart-guide`."""
    rest, subject = divmod(number, NUM_SUBJECTS)
    rest, qualifier = divmod(rest, len(QUALIFIERS))
    rest, form = divmod(rest, len(FORMS))
    return f"{QUALIFIERS[qualifier]}{subjects[subject]}{FORMS[form]}" + (f"-{rest + 1}" if rest else "")
