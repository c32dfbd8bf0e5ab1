"""The table of breaks: small changes of the package, each with the promise that it breaks.

`= ` begins the tests that must notice the breaks below it: files below `tests`, or with `::` and
a name a single test, which may be a slow one. A break is its name, its promise and its change:
`~ old ==> new` within a line, or `- ` and `+ ` before the lines that it takes out and puts in. What
it takes out occurs once in the package, in whatever file; where it does not, ` in ` and the file
follow the name.
"""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "presence_middleware"

TABLE = r"""

= browser/test_board_browser.py::test_a_widget_counts_its_room_and_another
widget-of-no-room-counts-one: A widget without a room shows the number of the site.
~ if (room === undefined) return counts.href; ==> if (false) return counts.href;
widget-counts-guests-as-users: A widget without a kind never counts another than the first.
~ place.dataset.presence || "$first" ==> place.dataset.presence || Object.keys(data)[0]
widget-keeps-what-it-showed: A widget for the page's room is empty on a page without a room.
~ else if (place.dataset.room !== undefined) ==> else if (false)
widget-of-a-path-with-marks: A widget counts the room of a path with & and +.
- .replace(/[&+]/g, encodeURIComponent)
widget-of-a-hidden-page in board/static/widget.js: A widget of a hidden page does not ask.
~ if (document.hidden) return; ==> if (false) return;
widget-of-a-shown-page in board/static/widget.js: A widget asks when its page is shown again.
- document.addEventListener("visibilitychange", refresh);
= browser/test_board_browser.py::test_a_chart_that_has_changed_is_drawn_again_in_its_style
style-is-inline: A policy of the site that forbids inline styles leaves the chart its colours.
~ /<style>.*<\/style>/s, "" ==> "", ""
= browser/test_board_browser.py::test_an_id_is_shown_as_text
markup-in-a-list: The page of the board shows an id as text.
~ made.textContent = text; ==> made.innerHTML = text;
= browser/test_board_browser.py::test_the_chart_draws_and_marks_its_peak
late-answer-about-another-kind: The chart and its table are of the chosen kind, whatever comes late.
- if (kind !== chosen("charted")) return;
= browser/test_board_browser.py::test_the_page_shows_arrivals_and_departures
screen-reader-is-never-silent: A screen reader reads the numbers twice a minute at most.
- showCounts(counts);
+ showCounts(counts);
+   setText(at("spoken"), `Online: ${kinds.map((kind) => many(counts[kind], kind)).join(", ")}`);
= browser/test_board_browser.py::test_the_hour_that_comes_twice_is_in_the_table_twice
hours-of-a-night-are-one: The hour that comes twice in autumn is in the table of the board twice.
~ Date.parse(time) - 60000 * new Date(time).getMinutes(); ==> new Date(time).setMinutes(0, 0, 0);
choice-while-a-chart-is-drawn in board/static/board.js: What is chosen meanwhile is shown after it.
- sampled = Date.now();  // before, because another chart may be asked for meanwhile
-       await showChart();
+ await showChart();
+       sampled = Date.now();
chart-that-failed-is-late in board/static/board.js: A chart that failed is asked for again at once.
- sampled = 0;
-     state("away"
+ state("away"
= browser/test_board_browser.py::test_the_page_says_that_the_site_does_not_answer
page-of-a-proxy-is-no-json: The board says that the site does not answer, not what a parser says.
- error instanceof Problem && error.message || "the site does not answer";
+ error instanceof TypeError ? "the site does not answer" : error.message;
error-of-a-gateway-is-an-object: Nor does it show "[object Object]".
~ typeof said === "string" ? said : "" ==> said
error-of-a-gateway-shows-nothing: Nor is the board silent about JSON that is not its own.
~ error instanceof Problem && error.message || ==> error instanceof Problem ? error.message :
board-waits-for-ever: A board whose site hangs does not go on saying that it is live.
- signal: AbortSignal.timeout(PATIENCE),
= browser/test_board_browser.py::test_a_page_asks_for_the_token_and_finds_users
token-that-was-changed-is-tried-for-ever: A board whose token was changed asks for the new one.
~ await showNames().catch(refused); ==> await showNames().catch(() => {});
token-of-spaces-unlocks-a-board: A board whose reader enters a space shows no empty list.
~ .replace(/[^!-~]/g, "") || "?"; ==> .trim();
token-in-another-alphabet: A token in Cyrillic letters is wrong; the site does answer.
~ .replace(/[^!-~]/g, "") || "?"; ==> || "?";
token-stays-in-its-field: Whoever finds a board that was unlocked does not find its token.
- at("token").value = "";
= browser/test_board_browser.py::test_the_page_is_readable_on_any_screen
kinds-are-wider-than-a-phone: The kinds of a site with many of them fit on a phone.
~ fieldset { display: flex; flex-wrap: wrap; ==> fieldset { display: flex;
text-has-a-size-of-its-own: The text of the board has the size that its reader has chosen.
~ font: 100%/1.5 ==> font: 16px/1.5
chosen-kind-has-no-mark: The kind that is chosen is marked also in forced colours.
- outline: 1px solid transparent;

= browser/test_board_live.py::test_the_list_changes_without_polling
list-of-another-kind: A board lists the kind that is chosen.
- leaveStream();
-   cursor = "";
-   refresh();
+ refresh();
list-goes-on-after-an-event-of-another-kind: The list of a kind that is chosen begins anew.
- cursor = "";
-   refresh();
+ refresh();
= browser/test_board_live.py::test_the_newest_hundred_are_listed_and_others_when_these_have_gone
list-of-names-grows: The board lists a hundred names at most.
~ while (list.children.length > MOST) ==> while (false)
list-of-names-runs-out: The board lists others when half of a hundred have gone.
~ isCut && list.children.length < MOST / 2 ==> false
list-of-few-begins-again: A list that has everybody is not read again at each change.
- setText(at("since"), "Came");
-   isCut = false;
+ setText(at("since"), "Came");

= browser/test_board_live.py::test_the_list_changes_behind_a_proxy_that_buffers
stream-is-held-back-again: A board polls for a while where a proxy holds its stream back.
~ || Date.now() < heldUntil ==> || false

= browser/test_board_live.py::test_a_page_whose_stream_fails_polls
page-of-a-proxy-is-a-stream: An error in place of a stream of events is no stream.
- if (!answer.ok) return;  // whoever polls then finds out why

= browser/test_board_live.py::test_times_are_those_of_the_server
times-by-the-clock-of-the-reader: A reader whose clock is wrong sees how long ago somebody came.
- setLag(now);
polled-times-by-the-clock-of-the-reader: Nor does a reader without events see another time.
- if (data.now) setLag(data.now);
chart-waits-for-the-clock: A chart goes on after the reader's clock was set back.
~ Math.abs(Date.now() - sampled) ==> Date.now() - sampled
stream-that-is-silent-is-kept: A board leaves a stream that brings nothing, not even a beat.
- if (stream && Math.abs(Date.now() - stream.heard) > SILENT) leaveStream();

= browser/test_mounts_browser.py
pulse-of-a-path-with-its-mount: A pulse names the room below the mount point.
~ mount = pathname.endsWith(own) ? pathname.slice(0, -own.length) : "unknown"; ==> mount = "";
pulse-of-another-app: A page of another app with this script is in no room.
~ (path + "/").startsWith(mount + "/") ==> true
pulse-of-an-app-with-a-longer-name: Nor is a page below /shops, for an app at /shop.
~ (path + "/").startsWith(mount + "/") ==> path.startsWith(mount)
widget-counts-the-path-with-its-mount: A widget counts the room below the mount point.
~ const mount = loaded.endsWith(own) ? loaded.slice(0, -own.length) : "unknown" ==> const mount = ""
widget-counts-for-another-app: A widget shows no number for the room of another app's page.
- if (!(pathname + "/").startsWith(mount + "/")) return undefined;
widget-counts-nobody-who-is-back: A widget asks again when the reader who came back is counted.
- if (shown) setTimeout(refresh, RECORDED);
widget-shows-an-old-number: A widget asks again once a minute.
- setInterval(refresh, EVERY + 5000 * Math.random());

= browser/test_pulse_browser.py::test_a_page_from_the_back_forward_cache_pulses_again
script-with-a-query-sends-to-itself: The address of the pulse's script may have a query.
~ src.replace(/\.js([?#].*)?$$/, "") ==> src.replace(/\.js$$/, "")
= browser/test_pulse_browser.py::test_a_page_that_comes_back_without_a_change_of_visibility_pulses
pulse-of-a-late-script-waits: A script that a page adds when it has loaded sends a pulse.
- setInterval(pulse, $every);
-   pulse();
+ setInterval(pulse, $every);
pulse-of-each-movement: A reader who moves the pointer sends no pulse by that within a window.
~ if (used - before > $window) pulse(); ==> pulse();
= browser/test_pulse_browser.py::test_a_hidden_tab_is_silent_until_it_is_visible
tab-is-silent-when-it-is-back: A tab that was hidden for long pulses as soon as it is visible.
- function show() {
-     used = Date.now();
+ function show() {
hidden-tab-pulses: A hidden tab is silent.
~ (document.hidden || Date.now() - used > $window) return; ==> (Date.now() - used > $window) return;
= browser/test_pulse_browser.py::test_a_url_of_the_sites_own_takes_the_pulse
hash-hides-a-signal: The address of the pulses of a page may have a hash.
~ url.password = url.hash = ==> url.password =
pulse-to-a-url-with-credentials: A page that was opened with credentials in its URL sends pulses.
~ url.username = url.password = url.hash = ""; ==> url.hash = "";
pulse-to-a-url-with-a-query: A URL of the site's own that takes the pulse may have a query.
~ url.href + (url.search ? "&" : "?") ==> url.href + "?"
pulse-of-a-page-that-stays: A page whose script has data-stay names no room.
~ isBelow && !("stay" in dataset) ==> isBelow
= browser/test_pulse_browser.py::test_without_input_for_a_window_a_page_is_silent
scroll-of-a-part-is-no-input: A reader who scrolls a part of the page pulses.
~ { capture: true, passive: true } ==> { passive: true }
pointer-that-moves-is-no-input: A pointer that moves is input.
~ "pointerdown", "pointermove", ==> "pointerdown",

= contract/test_board.py
every-reader-reads: A hundred readers of the board cause one read a second.
~ if result is None or began >= result.expires: ==> if True:
new-rooms-without-bound: Readers of ever new rooms cause a bounded number of reads.
~ if read.is_bounded and is_full and began < next(iter(results.values())).expires: ==> if False:
= contract/test_board.py::test_a_fork_amid_a_read_does_not_wait_for_it
read-of-the-parent-is-waited-for: A fork amid a read of the board answers at once.
~ _topics.setdefault((os.getpid(), read.topic), {}) ==> _topics.setdefault((0, read.topic), {})
= contract/test_board.py::test_a_read_that_hangs_holds_no_reader_and_another_starts
board-waits-for-a-read-that-hangs: A read of the board that hangs holds no other reader.
~ reading.acquire(timeout=PATIENCE) ==> reading.acquire()
read-that-hangs-is-waited-for-again: After a read of the board that hangs, another starts.
~ _Result(began + PATIENCE) ==> _Result(began + 60)
= contract/test_board.py::test_any_number_of_hours_has_few_points
history-of-many-points: A history of any length has a bounded number of points.
~ step in STEPS if hours * 60 <= (most - 1) * step ==> step in STEPS if hours * 60 <= most * step

= contract/test_caps.py
departures-are-forgotten-all-at-once: A write forgets a bounded number of departures.
~ math.min(most, MOST_REMOVED) - size - 1 ==> most - size - 1
shards-hold-more-than-the-limit: All shards together hold no more than the limit.
~ settings.max_members // settings.shards) ==> -(-settings.max_members // settings.shards))
first-networks-share-a-counter: In a flood of networks, the first keep the counter of their quota.
~ network in self._current or len(self._current) < COUNTED ==> len(self._current) < COUNTED
limit-of-each-half-hour: A kind in minute sets of a long window has no more members than its cap.
~ names, (share,)) ==> names, (self.max_members,))
known-of-full-minute-sets-are-refused: Who is online in full minute sets is refreshed.
~ known[n] or is_member == 1 ==> known[n]
limit-of-some-minutes: Who leaves minute sets of a long window is remembered up to the limit.
~ {}, ARGV[#ARGV] + 0 ==> {}, ARGV[#ARGV] + 0; max_members = room
known-guest-uses-the-quota: A guest who comes again in the next window leaves the quota to others.
~ self._new[counter] += is_new ==> self._new[counter] += 1
guests-of-long-ago-use-the-quota: The guests of an earlier window leave the quota to others.
~ self._before = self._current if has_just_ended else Counter() ==> self._before = self._current
quota-of-a-network: Addresses that are cut short have a quota each.
~ address = self._locate(request) if self._locate else request.peer ==> address = request.address
guests-without-quota: An address brings a bounded number of guests.
~ inventor is not None ==> False
room-without-quota: Who enters a room is within the quota of their address.
- self._conclude(self._resolve(), stamp, 0.0)
+ self.recorder.record(self._noted, stamp, self.arrival, room=self.room)
networks-share-a-counter: Each network has a quota of its own.
~ return network if has_its_own else network % COUNTED ==> return network % COUNTED
two-headers-end-the-quota: A client that sends a second header of addresses has a quota, too.
~ self._proxies) is not None ==> self._proxies) is not None or request.address is None
no-cap: A kind never has more members than its cap.
~ if #ids <= room then room = false end ==> room = false
each-address-of-a-host-has-a-quota: All addresses of an IPv6 network share a quota.
~ return hash(("host", bits >> 64)), hash ==> return hash(("host", bits)), hash
window-ends-twice: Two threads that find a window over at once forget nobody.
~ if now < self.period_ends: ==> if False:
flood-pushes-out-known-guests: Known guests of an address still count during a flood.
~ is_new = not people.knows(guest) ==> is_new = True
addresses-without-quota: The addresses of an IPv6 network share a quota.
~ "ip": _chosen(lambda *_: client_address, ==> "ip": SourceType(lambda *_: client_address,
unbounded-memory-of-people: A process remembers a bounded number of people.
~ if len(self.recent) + len(self._earlier) < self._limit: ==> if True:

= contract/test_contract.py
limit-that-is-too-large: A list may have a limit of any size.
~ limit = min(limit, sys.maxsize) ==> pass
list-without-end: A list ends, though people are seen again as fast as it is read.
~ if len(page) < size or read > 4 * len(times): ==> if len(page) < size:
list-ends-too-early: A list goes on where many are seen again before somebody who was not read.
~ read > 4 * len(times) ==> read > len(times) + 2 * PAGE
list-is-read-from-the-newest: Whoever is seen while everybody is listed is in the list.
~ yield from _everybody(key, cut, last) ==> yield from _pages(key, cut, sys.maxsize, last)
ids-of-a-moment-hide-each-other: Whoever moves away while everybody is listed hides nobody.
~ "BYSCORE", "LIMIT", 0, size, "WITHSCORES" ==> "BYSCORE", "LIMIT", size - PAGE, size, "WITHSCORES"
long-window-has-too-many-minutes: Minute sets may have a window of many days.
~ local left, gone, writers = unpack(KEYS, 1, 3) ==> local left, gone, writers = unpack(KEYS)
active-of-less-than-a-goodbye-hides: A period in which a goodbye hides people is refused.
~ if period < self.min_period: ==> if False:
key-without-lifetime in stores/record.lua: Every key expires.
- redis.call('EXPIRE', writers, lifetime)
key-of-minutes-without-lifetime in stores/minute_sets.lua: The same of minute sets.
- redis.call('EXPIRE', writers, lifetime)
window-beyond-the-retention: A window longer than ids are stored is refused.
~ if seconds > store.keep_seconds: ==> if False:
derived-id-is-refused: An id is of a usual type, of one that inherits from it, or a proxy of one.
~ {each.__name__ for each in value.__class__.__mro__} ==> {type(value).__name__}
= contract/test_contract.py::test_a_sorted_set_is_exact_to_the_microsecond
count-to-the-millisecond: A sorted set counts exactly, to the microsecond.
~ "ZCOUNT", self.key.seen, f"({now - window!r}" ==> "ZCOUNT", self.key.seen, f"({now - window:.3f}"
= contract/test_contract.py::test_every_key_has_the_prefix_and_a_lifetime
hyperloglog-without-lifetime: A HyperLogLog expires.
~ commands.append(("EXPIRE", key, self.ttl)) ==> pass

= contract/test_departures.py
handler-takes-offline-later in wsgi.py:
  Whoever a handler takes offline is offline before it answers.
- self.recorder.write_for_reader()
late-logout-of-an-erased-id: A logout that is written after a later erasure leaves no id.
~ LEFT and at_least(moment, redis.call('ZSCORE', left, erased(id)) or 0) then ==> LEFT then
logout-undoes-an-erasure: A request that erases its user and logs them out leaves no id.
~ act = ERASED if arrival < known.at else act ==> pass
handler-forgets-nobody in wsgi.py: A handler that forgets somebody erases the last-seen time.
~ self._depart(id, kind, Act.ERASED) ==> self._depart(id, kind, Act.LEFT)
goodbye-hides-too-long in upkeep.py: A goodbye hides nobody from `active` without rooms, either.
~ if settings.is_swept(kind) ==> if kind in settings.events or kind in settings.kinds_with_rooms
departure-by-a-reader-is-forgotten: Whoever a reader took offline stays so after a loss of data.
~ recorder.departed(who, act, stamp, moment) ==> pass
logout-is-lost-with-the-data: A logout is repeated if the server lost it.
~ departure.is_sent, departure.moment = False, None ==> pass
goodbye-is-sent-once: A goodbye is sent again with a click from before it.
~ self.seen and (is_waiting or not goodbye.is_sent): ==> self.seen and not goodbye.is_sent:
old-connection-outlives-logout: A connection from before a logout does not keep its user online.
~ at = self.seen  # a connection from before the logout was seen after it ==> pass
departed-id-comes-back: Whoever left stays offline, whatever other workers still hold.
~ return at_least(left_at[id], since) ==> return false
logout-by-a-clock-that-was-set-right-is-lost:
  Whoever leaves, returns and leaves again is offline, also if the clock turns out to be behind.
~ least = max(departure.least, person.erased.least_time(departure.at)) ==> least = 0
logout-with-an-erasure-is-lost: The same in minute sets, where a departure is written first.
~ if write and departures: ==> if False:
logout-after-an-erasure-is-lost: The same of an erasure, a visit and a logout that waited together.
~ least = max(departure.least, person.erased.least_time(departure.at)) ==> least = departure.least
guest-whom-a-reader-names-is-another: A guest who returns right after a reader's leave() is online.
~ self._people.share_departure(person) ==> pass
guest-whom-a-reader-names-twice-is-another: The same, if they leave and return a second time.
~ if person.id != person.who[1] and ==> if not person.left.moment and person.id != person.who[1] and
erasure-takes-what-follows-at-once: Whoever is erased has a last-seen time after the next visit.
~ max(left.least_time(arrival), person.erased.least_time(arrival)) ==> left.least_time(arrival)
second-logout-forgets-the-return: The same of two logouts in a row.
~ known.least_time(self.seen) or known.least ==> known.least_time(self.seen)
older-departure-wins: Whoever came back before a logout was written stays online.
- if not is_over(last_seen, latest, slack) then last_seen = false end
clock-ahead-of-the-server: A moment ahead of the server is lowered to its clock.
~ is_ahead(latest) and clock or latest ==> latest
second-logout-counts-before-the-return: Whoever leaves, returns and leaves again at once is offline.
~ is_over(last_seen, latest, slack) ==> is_over(last_seen, moment, slack)
lost-data-is-not-noticed: What a server lost is written again.
~ return stored is None or stored < moment / 1e6 ==> return False
silence-is-taken-for-loss: A process that was silent for a window has lost nothing.
~ None if last is None or moment - last > self._most_age else last ==> last
loss-in-another-shard-waits: A loss that a write shows is looked for in all shards at once.
~ self._generation = -1  # the other ==> # the other
logout-in-a-handler-erases: After a logout in a handler, the last-seen time stays.
~ self.people.note(who, stamp, stamp, act) ==> self.people.note(who, stamp, stamp, Act.ERASED)
loss-hides-behind-a-lost-reply:
  Data that a server lost is written again, also if the reply to the next write is lost.
~ if since == '' or at_least(reply[3], now - since) then ==> if true then
loss-hides-from-hyperloglogs: The same holds where nobody can leave.
~ ["XX"] if write.previous else [] ==> []
touch-is-refused-by-a-clock-ahead: Touch counts though another server's clock was ahead.
~ arrival = to_microseconds(latest + keys.SLACK) ==> arrival = last + 1
erasure-takes-a-visit-with-it: Whoever is erased, returns and logs out has a last-seen time.
~ self.erased = known ==> act = max(act, known.act)
goodbye-is-sent-after-the-logout: Whoever closes a page and logs out was seen until then.
~ sorted(due, key=attrgetter("at")) ==> due
erasure-leaves-what-is-ahead: An erasure holds also after the server's clock was set back.
~ at_least(latest, score or 0) or is_ahead(score, by) ==> at_least(latest, score or 0)
logout-leaves-who-is-ahead: Whoever leaves after that is offline.
~ is_over(last_seen, latest, slack) ==> at_least(latest, last_seen or 0)
logout-takes-a-return-with-it: Whoever is ahead by the difference of clocks has come back.
~ is_over(last_seen, latest, slack) ==> is_over(last_seen, latest)
departure-after-one-ahead-is-lost: The same in minute sets, of whoever is touched after it.
~ (is_ahead(known) or not at_least(known, moment)) ==> not at_least(known, moment)
leave-of-a-stranger-is-not-repeated: Whom a process never saw stays offline after its leave().
~ if person.shard in (shard, None): ==> if person.shard is shard:
child-takes-the-people-of-its-parent: A child waits for no lock that its parent held at the fork.
~ self.backend.departures.add(self) ==> self.backend.departures.add(self.people)
logout-brings-an-erased-time-back: A logout long after an erasure brings no last-seen time back.
~ departure.at - window < person.seen <= departure.at ==> NEVER < person.seen <= departure.at
erased-time-is-sent-with-a-logout: Whoever was erased has no last-seen time that a logout brings.
~ if known.act is ERASED: ==> if known.act is ERASED and not known.is_sent:
= contract/test_departures.py contract/test_logins.py contract/test_contract.py
return-after-logout-is-refused: A user who returns right after a logout is online.
~ time = max(time, person.goodbye.least_time(seen), after_logout) ==> pass
= contract/test_departures.py redis/test_outages.py
other-server-is-trusted: After a lost connection, a process asks at once whether its data is there.
~ < self._look_at and self._generation == health.generation: ==> < self._look_at:
= contract/test_departures.py::test_who_came_after_silence_is_written_again
silence-forgets-who-ends-it: A process remembers who came after a long silence.
~ if each.has_acted(since)} ==> if False}
late-round-forgets-early: A process remembers for a window who came before a late round.
-         self.period_ends = now + self._window
+         began = self.period_ends if has_just_ended else now
+         self.period_ends = began + self._window
= contract/test_departures.py::test_an_erasure_before_a_logout_holds_after_a_loss
logout-replaces-an-erasure: A server that returns with older data learns of erasures again.
~ in (self.erased, self.left, self.goodbye): ==> in (self.left, self.goodbye):
= contract/test_departures.py::test_who_left_keeps_the_last_seen_time_after_two_losses
refusal-forgets-who-left: Who left keeps the last-seen time, also if a server loses it twice.
~ self.sent == taken.seen and self.left.moment is None: ==> self.sent == taken.seen:
= contract/test_departures.py::test_what_a_reader_wrote_last_holds_after_a_loss
departure-by-a-reader-is-no-write: That a server lost what a reader wrote last is noticed.
~ person.left.moment = moment ==> person.left.is_sent, person.left.moment = True, moment
departure-is-repeated-after-a-touch: Who is touched after leave is online, whatever is repeated.
~ self.recent.get(who, Person(who)).left.is_sent = True ==> pass
= contract/test_departures.py::test_an_old_connection_does_not_hide_the_visit_after_it_from_a_loss
refusal-forgets-the-visit-before: Of who logged in again, the visit is repeated after a loss.
~ self.seen = self.sent = self.arrival = taken.before if is_newer else ==> self.seen = self.sent =
refusal-forgets-when-the-visit-came: The repeated visit counts as one of after the logout.
~ self.seen = self.sent = self.arrival = taken.before if ==> self.seen = self.sent = taken.before if
refusal-repeats-the-connection: Who logged out stays offline after a loss, whoever else has ended.
~ is_newer = taken.before > taken.arrival ==> is_newer = True
second-refusal-forgets-the-visit: Nor does a second old connection hide the visit.
-             self.sent_arrival = self.arrival
failure-forgets-the-visit-before: A write that fails forgets no visit from before it.
- self.sent_arrival = taken.before
= contract/test_departures.py::test_who_said_goodbye_is_erased_also_after_a_clean_up
erasure-leaves-a-goodbye: Who said goodbye and is erased has no last-seen time.
~ local last_seen = later(score, goodbye) ==> local last_seen = score and later(score, goodbye)
= contract/test_departures.py::test_remembered_sightings_never_exceed_the_configured_limit
lost-data-without-bound: Of what a server lost, a bounded number waits.
~ lose(since, has_room=self.pending < self._most_pending) ==> lose(since, has_room=True)

= contract/test_followed_logs.py::test_a_pipe_that_is_quiet_is_not_waited_for
quiet-pipe-blocks: A quiet pipe delays neither other logs nor what waits to be written.
~ if not select.select([self._descriptor], [], [], 0)[0]: ==> if False:
= contract/test_followed_logs.py::test_lines_are_written_early_if_half_of_the_people_wait
burst-of-lines-is-dropped: A burst of lines is written before too many people wait.
~ if time.monotonic() < self._due and not is_nearly_full: ==> if time.monotonic() < self._due:
= contract/test_followed_logs.py
json-of-parts-is-unreadable: A line of JSON may have the method and the path apart.
~ elif request is not None: ==> else:
rest-of-a-renamed-log: A renamed log is read to its end, however long that takes.
~ if not lines: ==> if True:
truncated-log-goes-on: A log that was truncated and has grown since is read from its beginning.
~ != self._before: ==> == b'never':
unwritten-sightings-are-logged-twice: A shutdown logs once how many sightings are unwritten.
~ if not each.worker.stopping.is_set() ==> if each
followed-line-counts-now: A line of a followed log counts at its own time.
~ max(0.0, age) ==> 0.0
line-of-a-log-ends-the-command: No line of a log ends a command, whatever is in it.
~ except Exception:  # anything may be in a line ==> except ValueError:  # anything may be in a line
half-a-character-hides-a-visitor: A visitor counts whose field in a log has half a character.
~ _HALVES.sub("\ufffd", text).encode( ==> text.encode(
readers-of-a-board-without-bound: The board of a log has a bounded number of connections.
~ connection_limit=MOST_READERS ==> connection_limit=1000
readers-of-a-board-fill-the-terminal: Readers who ask at once add no line to what follow prints.
~ logging.getLogger("waitress.queue").setLevel(logging.ERROR) ==> pass
port-that-is-none-listens: A board listens at the port that it is given, or not at all.
~ and port.isdecimal() and int(port) <= context.MAX_PORT ==> and port.isdecimal()

= contract/test_invisible.py
hidden-user-is-recorded-before-the-layer: A user whom a layer hides is not recorded before it did.
~ awaits_identify or any(set_by_app[:place]) ==> any(set_by_app[:place])
hidden-kind-is-shown: The board shows the number of invisible people only with the token.
~ if path in NEED_TOKEN or _first(query, "kind") in self._hidden_kinds: ==> if path in NEED_TOKEN:

= contract/test_logins.py
claims-are-shown: What is no id is not shown in an error: it may be claims with an email.
~ if isinstance(value, str | bytes | Number | None): ==> if True:
claims-are-taken-for-an-id: A layer names a user by an id, not by claims or by a user object.
~ if isinstance(given, str) else stored_id(given) ==> if isinstance(given, str) else str(given)
wrong-password-counts-on-a-busy-site: Nobody counts by a wrong password, however many came before.
~ self.worker.is_started and not self.resolver.checks_status ==> self.worker.is_started
logout-of-a-busy-site-is-a-page: A layer logs out whoever has seen many pages.
- if is_uncounted else Purpose.LOGOUT
-         self.is_usual = False
+ if is_uncounted else Purpose.LOGOUT
options-accepts-a-login: An answer to OPTIONS accepts no login.
~ (101, 304)) and method != "OPTIONS": ==> (101, 304)):
colon-in-password in identity/sources.py: The user of HTTP Basic is the text before the first colon.
~ validate=True).partition(b":") ==> validate=True).rpartition(b":")
closed-socket-is-accepted: A WebSocket that is refused accepts no login.
~ if message.get("type") == "websocket.accept": ==> if message.get("type", "")[:9] == "websocket":
checked-guest-has-no-quota: A guest whose login is checked has a quota all the same.
- self.has_quota = rule.type.client_supplied
+ self.has_quota = rule.type.client_supplied and not rule.checked
logout-hides-what-inner-layers-set: Outer layers read what inner layers put into the scope.
~ scope.update(inner) ==> pass
logout-after-the-login-is-cleared: Who was logged in at arrival is logged out, also if said late.
~ self._login = earlier_login(now, self._login, users) ==> self._login = now
foreign-page-logs-out: A page of another site logs nobody out.
~ may_log_out = not is_cross_site and ==> may_log_out =
failed-logout-counts-where-no-page-does: A logout that fails on an excluded path is no visit.
~ Purpose.EXCLUDED_LOGOUT if is_uncounted else Purpose.LOGOUT ==> Purpose.LOGOUT
guest-is-logged-out: A logout takes no guest offline.
~ is_user = who is not None and who[0] in users ==> is_user = who is not None
layer-logs-a-guest-out: Nor does a layer that logs out whoever is there.
~ now = earlier_login(NOBODY, self._resolve(), users) ==> now = self._resolve()
socket-logs-out: A WebSocket at a path of PRESENCE_LOGOUT logs nobody out.
~ not is_cross_site and request.get("type") != "websocket" ==> not is_cross_site
= contract/test_logins.py servers/test_servers.py unit/test_asgi.py
lifespan-ends-without-writing: At the shutdown of an ASGI server, everything is written.
~ self.recorder.close() ==> pass

= contract/test_model.py
repeated-logout-takes-a-return: In minute sets, a departure that is sent twice undoes no return.
~ (is_ahead(known) or not at_least(known, moment)) and #KEYS or 0 ==> #KEYS
late-erasure-undoes-a-logout: An erasure that is written late undoes no logout after it.
~ if is_over(redis.call('ZSCORE', left, id), latest) then ==> if true then
late-erasure-undoes-a-visit: An erasure that is written late erases no visit after it.
~ if is_over(redis.call('ZSCORE', gone, id), latest) then ==> if true then
active-leaves-out-who-left: Active users are also those who logged out since.
~ sets = self.key.seen, self.key.gone ==> sets = (self.key.seen,)
erased-id-comes-back: An erased id stays away, whatever other workers still hold.
~ and at_least(redis.call('ZSCORE', left, erased(id)), since) ==> and false
erased-id-has-a-time: A logout that comes late brings no last-seen time of an erased id back.
- and not at_least(redis.call('ZSCORE', left, erased(id)), arrival or last_known)
connection-arrives-late: A connection from before a logout stays offline.
~ local arrival = arrived() or time ==> local arrival = time
older-sighting-undoes-a-goodbye: An older sighting undoes no goodbye.
~ elseif not at_least(goodbye_at[id], later(time, arrival)) then ==> else
lowered-time-is-believed: Whoever came back after a goodbye survives a logout of before.
~ local last_seen = later(score, goodbye) ==> local last_seen = score
returned-id-has-two-times: An id that came back has one last-seen time.
~ and redis.call('EXISTS', gone) == 1 then ==> and false then
refused-id-loses-its-time: An id that is refused keeps its last-seen time.
~ redis.call('ZREM', gone, unpack(accepted)) ==> redis.call('ZREM', gone, unpack(ids))
older-sighting-lowers-the-time: An older sighting that comes late does not lower the last-seen time.
~ redis.call('ZADD', seen, 'GT', unpack(words)) > 0 ==> redis.call('ZADD', seen, unpack(words)) > 0
erased-id-stays-in-a-key: An id that is erased is in no key.
~ erased(id), string.format('%.6f', moment + 1e-6) ==> id, string.format('%.6f', moment + 1e-6)
erased-id-is-offered-again: An id that is erased stays away, whatever other workers still hold.
~ at_least(redis.call('ZSCORE', left, ' '), earliest) ==> false
departures-are-kept: A logout is remembered for a window only.
~ max_members, key == left and old or 0) ==> max_members, 0)
unknown-departures-without-bound: Departures of unknown ids are bounded.
~ math.max(size - max_members, key ==> math.max(0, key
goodbye-hides-the-last-seen-time: A goodbye changes no last-seen time.
- redis.call('ZADD', bye, moment, id)
goodbye-of-a-closed-tab-wins: Another open tab keeps its user online.
~ last_seen and not at_least(lowered, score or 0) ==> score and not at_least(lowered, score)
cap-counts-nobody-new: A kind never has more members than its cap in minute sets.
- if is_new then room = room - 1 end
touch-is-refused: After touch, a connection from before the logout counts again.
- so that nothing of this instant is refused
-       redis.call('ZREM', left, id)
+ so that nothing of this instant is refused
window-includes-its-end: Whoever was seen exactly a window ago is offline.
~ "ZCOUNT", self.key.seen, f"({now - window!r}" ==> "ZCOUNT", self.key.seen, f"{now - window!r}"
page-loses-ids-of-equal-times: Pages list each id once, also those of equal times.
~ if rank(ranked) < last] ==> if rank(ranked)[0] < last[0]]
missing-script-fails: A server that restarted gets the scripts again.
~ if ScriptMissing in map(type, outcomes): ==> if False:
logout-leaves-the-room-full: Whoever logs out leaves the room.
- if rooms and at_least(moment, redis.call('ZSCORE', moves, id) or 0) then leave_room(id) end
erased-id-stays-among-moves in stores/presence.lua: An id that is erased is in no key of rooms.
~ ipairs({rooms, moves}) ==> ipairs({rooms})
old-page-becomes-the-room: The latest page counts in whatever order workers write.
- and not at_least(redis.call('ZSCORE', moves, id), moment)
page-before-logout-is-a-room: A page from before a departure is no room afterwards.
~ and not has_left(id, moment) and ==> and
join-twice-in-a-write: An id that comes twice in a write comes once.
- has_come[id] = math.huge
goodbye-announced-twice: A goodbye is announced once.
~ if at_least(cut, lowered) then go(id, score, moment) end ==> go(id, score, moment)
waiting-sighting-is-lost: Who left elsewhere before their only sighting was written has its time.
- if at_least(left_at[id], time) then table.insert(departed, departure) end
erased-connection-has-a-time: Who is erased and logs out has no time, whoever is still connected.
~ {LEFT, id, left_at[id], time, arrival} ==> {LEFT, id, left_at[id], time}
ids-are-answered-twice: Each id of a question is answered once.
~ return list(dict.fromkeys(map(stored_id, ids))) ==> return list(map(stored_id, ids))
= contract/test_model.py::test_a_store_does_what_its_model_does_where_chance_seldom_leads
late-departure-is-forgotten-at-once: A logout or an erasure that waited for long holds for others.
~ if act ~= GOODBYE and at_least(now - window, moment) then ==> if false then
late-departure-ends-a-later-login: Whoever logs in again before a late logout is written stays.
- local last_seen, is_known = take_out(act, id, moment, latest)
+ moment = later(moment, now - window)
+       local last_seen, is_known = take_out(act, id, moment, latest)
rooms-outlive-last-seen-times: A room whose last-seen times are lost counts nobody of before.
- if rooms then redis.call('UNLINK', rooms, moves) end
room-of-a-window-ago: A count of a room ends with the window.
~ return in_room('(' .. offline_before, '+inf') ==> return in_room(offline_before, '+inf')
room-keeps-who-was-counted-as-gone: A write takes out of the room whoever was counted as gone.
~ elseif at_least(offline_before, score) then ==> elseif false then
gone-people-keep-their-room: Whoever was counted as gone comes back into no room without a page.
~ stream or cut and redis.call('ZCOUNT', seen, '(' .. cut, offline_before) > 0 then ==> stream then

= contract/test_named_events.py
second-name-is-not-given-up: A process that ends gives up all its names.
~ if self._woken.empty() and not self._era(): ==> if not self._era():
name-that-is-being-given-up-is-left: A process that ends waits for the thread that gives up names.
-         for lease in held:
+         for lease in [lease for lease in leases if lease.is_held]:
closed-name-is-taken-again: A name that was given up is free for others.
~ self._leases.discard(lease) ==> pass
two-holders-of-a-name: One process at a time receives the events of a name.
~ return time.monotonic() < self.ends_at ==> return True
handled-place-is-not-stored: Another process goes on after the last event that was handled.
~ yield Batch((("SET", place, handled, ==> yield Batch((("SET", place, self.start,
event-counts-as-handled-at-once: An event is handled when the next is asked for.
~ self._in_hand = event.cursor ==> self._handled = event.cursor
lease-held-again-drops-the-queue: A reader whose lease is held again receives what waited.
~ if handed is None or handed: ==> if handed:
lease-that-ran-out-wakes-nobody: Whoever waits as a lease is held again receives what waited.
~ is_awaited, self._is_awaited = self._is_awaited or ==> is_awaited, self._is_awaited = False or
lease-taken-by-nobody-is-not-noticed: A lease that was away for a moment is noticed.
~ self.start, self._handled, self._in_hand = handled, "", "" ==> pass
each-who-is-behind-waits-for-an-outage: In an outage, few who are behind occupy a thread.
~ self._is_away = True ==> pass
nobody-catches-up-after-an-outage: Whoever is behind goes on after an outage.
~ self.end.positions, self._is_away = read.end, False ==> self.end.positions = read.end
loss-is-told-to-each-holder-of-a-name: Those who read under a name are told of a loss once.
-             if lease is not None:
-                 lease.hand_out(self._queue, self._place.positions)  # they are missing once
+             pass
place-before-a-loss-is-gone-on-from: Whoever was told of a loss goes on after it.
~ start[shard] = reading.position ==> pass
hole-in-the-stream: A reader notices every event that is missing.
~ is_lost = is_lost or not follows or packed == RESET ==> is_lost = is_lost or packed == RESET
= contract/test_named_events.py redis/test_follow.py
iterator-that-could-not-read-sleeps: Whoever could not catch up tries again after the next read.
~ self._has_retries = True ==> pass
= contract/test_named_events.py::test_a_page_behind_is_read_to_its_end
chunk-without-its-end: Whoever falls behind between two chunks of a read gets no event twice.
~ self.end = (*self.end[:shard], entry.position, *self.end[shard + 1 :]) ==> pass
more-events-wait: A reader of events that fell behind catches up without waiting.
~ has_more = any(reading.has_more for _, reading in found) ==> has_more = False
= contract/test_named_events.py::test_who_is_behind_an_absent_shard_waits
reader-of-an-away-shard-spins: Who is behind a shard that is away waits for the next read.
~ if read is None or read.end == after != until: ==> if read is None:
= contract/test_named_events.py::test_whoever_waits_for_a_name_reads_nothing
who-waits-for-a-name-spins: Who waits for a name that another has reads nothing.
~ return place is not self.end and place.next is None ==> return place is not self.end

= contract/test_rooms.py::test_a_room_of_more_than_are_looked_up_at_once_counts_each_once
pages-of-a-room-overlap: A room of more than a thousand ids counts each of them once.
~ first + LOOKED_UP_AT_ONCE - 1 ==> first + LOOKED_UP_AT_ONCE
= contract/test_rooms.py
counts-of-kinds-with-rooms: `counts` has all kinds, also on a site with rooms.
~ if room is not None:  # without rooms, ==> if True:  # without rooms,
rooms-of-a-year-ago: Nobody is in a room of before PRESENCE_ROOMS was empty for some time.
~ EXPIRE', key, math.ceil(window + slack)) end ==> EXPIRE', key, lifetime) end
room-of-an-evicted-key: A reader of rooms survives a server that evicts their cut.
~ if not cut or members == 0 or ==> if members == 0 or
loss-brings-back-a-room-that-was-left: Who was offline is in no room after a loss of data, either.
~ self.room = Room(NOWHERE, known.since) if known and self.is_moving else None ==> pass
room-that-was-left-in-an-outage: A page that waits through an outage ends the stay before it.
~ Room(NOWHERE, known.since) if known and self.is_moving else None ==> None
room-of-before-an-outage: Whoever was offline in an outage comes back into no room without a page.
~ if at - self.seen >= window or self.seen ==> if self.seen
room-of-before-a-goodbye: Whoever was offline after a goodbye comes back into no room, either.
~ or self.seen <= goodbye <= at - grace: ==> or False:
page-of-before-the-window-is-a-room: Whoever was offline is in no room, whoever writes first.
~ later(cut, offline_before) + 0 then ==> cut + 0 then
count-looks-up-all-who-are-gone: A room is counted by whoever are fewer: here those who are online.
~ if online < gone then return ==> if false then return
count-of-a-large-room-is-one-command: A command looks up a bounded number of ids.
~ <= math.min(members, most) then ==> <= members then
count-looks-up-all-who-are-online: A room is counted by whoever are fewer: here those who have gone.
~ if online < gone then return ==> if true then return
count-of-a-small-room-reads-all: A room is counted by whoever are fewer: here those who are in it.
~ <= math.min(members, most) then ==> <= most then
room-of-the-path-with-its-mount-over-wsgi: A room is the path below the mount point, over WSGI.
~ return text(self.state.get("PATH_INFO", "")) ==> return self.path
room-of-the-path-with-its-mount-over-asgi: A room is the path below the mount point, over ASGI.
~ return below_root(self.state) ==> return self.path
empty-set-keeps-its-writers: A set that was evicted alone is noticed.
- redis.call('DEL', writers, bye)

= contract/test_round_trips.py
history-holds-up-a-loop: A long history is read in parts, and an event loop goes on in between.
~ in chunks(days, DAYS_A_TRIP): ==> in chunks(days, len(days)):
departure-of-nobody-takes-a-thread: A coroutine that takes nobody offline waits for no thread.
- if (who := self.backend.queries.departing(id, kind, act)) is not None:
-             require_asyncio()
+ if (who := await in_thread(self.backend.queries.departing, id, kind, act)):
+             require_asyncio()
writing-handler-counts-its-visitor: A handler that touches somebody does not count its visitor yet.
~ backend.driver.run(plan) if is_write else reader.run(plan) ==> run(plan)
shards-of-different-moments: On a single server, a read of many shards is a snapshot.
~ is_atomic and (batch.atomic or len(batch.commands) == 1) ==> is_atomic and batch.atomic

= redis/test_cluster.py::test_readers_wait_no_more_for_a_node_once_a_write_found_it_hanging
readers-wait-for-a-node-that-hangs: A node that hangs holds up few of the readers of a process.
~ if not self._is_writer and self.health.is_silent(node.name): ==> if False:
unasked-node-is-a-lost-connection: Who does not ask a node that hangs asks no server for its time.
~ if not isinstance(error, PresenceUnavailable):  # or else ==> if True:  # or else
full-node-is-not-asked: A node that refuses writes is asked.
~ failure is not None and not failure.is_refusal and target ==> failure is not None and target
= redis/test_cluster.py
old-number-of-shards-is-kept: A process with another number of shards answers no longer.
~ LAYOUT_TRUSTED_SECONDS = 10.0 ==> LAYOUT_TRUSTED_SECONDS = 1000.0
write-waits-for-readers in connections/cluster.py: On a Cluster, too, a write waits for no reader.
~ __init__(*arguments, **options) ==> __init__(*arguments)
each-write-waits-for-a-node: While a node of the agreement hangs, writes to others do not wait.
~ self._asks_after = now + MAX_PAUSE_SECONDS ==> self._asks_after = now
node-is-never-asked-again: A node of the agreement that was away is asked again after some seconds.
~ self._asks_after = now + MAX_PAUSE_SECONDS ==> self._asks_after = math.inf
question-delays-others: While a node hangs, a question about it delays no question about others.
~ is_last = remaining <= 0 and not attempt.avoid ==> is_last = remaining <= 0
form-of-a-cluster-is-not-said: Whoever reaches one node of a Cluster is told the form of its URL.
~ message = _MOVED if is_elsewhere else ==> message =
cluster-that-is-down-is-asked-once: What a Cluster refused for a moment is asked again at once.
~ exceptions.AskError, exceptions.ClusterError, ==> exceptions.AskError,
slot-without-a-node-is-asked-for-once: Keys that no node had for a moment are asked for again.
~ with suppress(RedisClusterException): ==> with suppress():
one-shard-hides-ids: A list is complete, however ids are spread over the shards.
~ if share != limit: ==> if False:
other-number-of-shards: A process with another number of shards is refused.
~ if number is not None and not self.is_agreed: ==> if False:
one-node-tells-the-time: While a node of a Cluster is away, another tells the time.
~ for node in self._keyless_nodes(client): ==> for node in _primaries(client)[:1]:
node-that-hangs-tells-the-time: The same of a node that hangs.
~ (exceptions.ConnectionError, exceptions.TimeoutError) as ==> exceptions.ConnectionError as
another-node-tells-the-time-for-ever: Once it is back, the first node tells all the time again.
~ since = time.monotonic() - PASSED_OVER ==> since = -1.0
moved-keys-are-not-followed: Keys that move to another node are followed.
~ part_replies = self._execute_on_owners(client, part, is_retry=True) ==> raise
moved-cluster-is-not-found: A Cluster that returns at other addresses is found by its URL.
-         self.forget_client()  # no known node answers
-         raise failure
+         raise failure
moved-cluster-is-not-found-by-its-nodes:
  A Cluster that returns at other addresses is found by its URL by whoever knows the time.
-             self.forget_client()  # no known node answers
number-of-shards-is-away: A question to other nodes needs none that stores the number of shards.
-             if not self.is_agreed:
-                 raise
+             raise

= redis/test_connecting.py
options-are-lost-on-a-cluster: Options of TLS in the URL reach the connections to a Cluster.
~ partialmethod(base.__init__, **given) ==> partialmethod(base.__init__)
class-of-credentials-is-an-object: A class may be named as the provider of credentials.
~ isinstance(provider, type) or not hasattr ==> not hasattr
errors-of-credentials-are-shown in connections/redis_py.py:
  What a provider of credentials raises may contain a token, and is not shown.
~ f"{type(error).__name__}" ==> f"{error}"
= redis/test_connecting.py::test_a_client_of_valkey_py_is_one_of_redis_py
errors-of-redis-py-only: A client of valkey-py has its scripts sent to a new server.
~ for each in type(error).__mro__} ==> for each in type(error).__mro__ if "redis" in str(each)}
= redis/test_connecting.py::test_the_error_of_a_server_that_is_away_gives_a_reason_and_no_secret
options-of-sentinels-are-shown: An outage shows no password of the Sentinels.
~ error.args = (_SENTINELS.sub(": ", str(error)),) ==> pass
password-of-sentinels-is-cut-short: Nothing of a password of the Sentinels is shown.
~ re.compile(" : <.* - ", re.DOTALL) ==> re.compile(" : <.*? - ", re.DOTALL)
= redis/test_connecting.py::test_threads_that_begin_share_memory
memory-of-each-thread: Threads that are the first to use memory:// see the same people.
- client.ping()

= redis/test_embedded.py::test_a_server_that_does_not_end_is_killed
deaf-server-is-waited-for: A server that does not end in time is killed.
~ os.kill(process, signal.SIGKILL) ==> pass
= redis/test_embedded.py::test_a_server_with_more_time_is_launched_for_as_long
launch-has-no-more-time: The demo's server may take 25 seconds to start on a busy machine.
~ timeout=seconds, ==> timeout=5.0,
= redis/test_embedded.py::test_a_server_that_loads_or_has_time_is_waited_for_unless_to_join
command-waits-for-loading: Whoever only joins a server waits for a second at most.
~ if start and reply.startswith(b"-LOADING"): ==> if reply.startswith(b"-LOADING"):
= redis/test_embedded.py::test_a_server_that_others_use_is_not_waited_for_without_end
end-waits-for-other-users: A demo ends although others use its server.
~ _is_supervised(directory)) and time.monotonic() < deadline: ==> _is_supervised(directory)):
= redis/test_embedded.py::test_links_to_long_paths_are_in_a_directory_of_this_user
links-of-another-user: No other user can redirect a long path to a socket.
~ _check_private(links) ==> pass
= redis/test_embedded.py
loading-server-is-given-up: A server that loads its data is waited for.
~ if start and reply.startswith(b"-LOADING"): ==> if False:
full-disk-for-ever: A server whose disk was full can write again.
~ if not NEEDS_JOURNAL.isdisjoint(facts): ==> if False:
copy-of-a-lock-blocks: A process that was forked during a start blocks nobody.
~ fcntl.flock(lock, fcntl.LOCK_UN) ==> pass
= redis/test_embedded.py::test_a_journal_that_could_not_be_made_is_made_soon
full-disk-for-an-hour: Soon after a disk was full, the embedded server saves its data again.
~ b"aof_enabled:0", b"aof_rewrite_scheduled:1"} ==> b"aof_enabled:0"}
= redis/test_embedded.py::test_a_kill_leaves_nothing_but_all_that_was_written
killed-supervisor-leaves-its-server: A killed supervisor leaves no server behind.
~ start_guard(process, server_lock) ==> pass
= redis/test_embedded.py::test_ctrl_c_does_not_reach_it_and_the_terminal_is_not_held_open
ctrl-c-ends-the-server: Ctrl-C does not reach the embedded server.
~ start_new_session=True, ==> start_new_session=False,
= redis/test_embedded.py::test_only_this_user_can_get_at_it_and_it_inherits_no_secrets
secrets-reach-the-server: The embedded server inherits no secrets.
~ {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ} ==> dict(os.environ)
= redis/test_embedded.py::test_the_log_does_not_grow_for_ever
log-grows: The log of the embedded server does not grow for ever.
~ os.ftruncate(STDERR, 0) ==> pass
= redis/test_embedded.py::test_what_prevents_a_start_is_named
anybody-may-write-the-folder: A directory that another user can write to is refused.
~ if not is_own or status.st_mode & 0o022: ==> if not is_own:

= redis/test_follow.py
reader-keeps-the-upkeep: A reader that ends gives the upkeep up.
~ self.upkeep.give_up(self.driver) ==> pass
closed-iterator-goes-on: Whoever closes an iterator gets none of the events that it took.
- if self._lease is None and not self._era.is_over:
-             for taken in self._queue:  # the short way of most events
-                 return taken
-         # An
+ if self._lease is None:
+             for taken in self._queue:  # the short way of most events
+                 return taken
+         # An
iterator-that-was-closed-in-its-turn-goes-on: So does whoever closes one that waits for its turn.
~ if era.is_over: ==> if False:
closed-async-iterator-goes-on: So does whoever closes one of coroutines.
- if self._lease is None and not self._era.is_over:
-             for taken in self._queue:  # the short way of most events
-                 return taken
-         for
+ if self._lease is None:
+             for taken in self._queue:  # the short way of most events
+                 return taken
+         for
logout-after-the-leave: Whoever logs out in the instant in which they have gone goes once.
~ cut and score + 0 > cut + 0 then ==> cut and score + 0 >= cut + 0 then
clean-up-before-the-announcement: A clean-up removes nobody who was not announced.
~ super().keep_longer(max(seconds, self.gone_after)) ==> super().keep_longer(seconds)
times-expire-before-a-late-leave: Last-seen times outlive a leave that long flushes delay.
~ self.keep_longer(0.0) ==> pass
clock-behind-a-short-window: After a clock was set back by more than a window, people come.
~ if cut_at - math.min(slack, window / 2) > now + 0 then ==> if cut_at - slack > now + 0 then
event-of-the-same-millisecond-is-missed: A reader misses nothing of the millisecond it begins in.
~ else f"({since}-0", "-", "COUNT", 1) ==> else f"({since}", "-", "COUNT", 1)
goodbyes-without-lifetime: The key of goodbyes expires.
- redis.call('EXPIRE', bye, lifetime)
unbounded-eviction: A lower limit removes a bounded number of ids in each write.
~ local MOST_REMOVED = 1000 -- ==> local MOST_REMOVED = 1000000 --
moment-is-split-between-sweeps: People of one moment leave together.
- found = redis.call('ZRANGE', key, low, high, 'BYSCORE', 'WITHSCORES')
event-after-a-pause-is-lost:
  Who begins to follow a site that was asleep for five minutes receives who comes in this moment.
~ number - _size(packed) ==> number
stream-grows: The stream holds five minutes.
~ local STREAM_SECONDS, MAX_BYTES = 300, ==> local STREAM_SECONDS, MAX_BYTES = 30000,
full-stream-is-said-each-time: A stream that is full is a warning a minute, not one a write.
~ if time.monotonic() < self._warned_at + 60: ==> if False:
stream-without-bound: The stream has at most 64 MB.
~ if n - first[1] > MAX_BYTES then ==> if false then
resuming-repeats-events: Whoever goes on after the last event of an entry gets the next.
~ moment_of(moment), cursor_of(positions)) ==> moment_of(moment), before)
lost-events-are-silent: An iterator reports events that it missed.
~ if chunk.is_lost: ==> if False:
iterator-goes-through-a-fork: An iterator from before a fork is refused.
~ if self._feed.pid != os.getpid(): ==> if False:
outage-of-events-is-silent: An iterator reports that Redis stays away.
~ if now - self.since < OUTAGE_SECONDS: ==> if True:
outage-of-each-shard-is-silent: An outage of all shards is reported, too, if each has its own error.
~ if not found and (error := first_error(readings)): ==> if False:
outage-of-events-never-ends: After an outage of events, a moment without an answer is no outage.
-                 self.outage.end()
+                 pass
iterator-takes-others-wake-up:
  All who wait for events are woken, although some wait again meanwhile.
- self.waiters.discard(waiter)
-             waiter()
+ self.waiters.pop()()
place-that-was-dropped-is-the-end: Whoever is behind the page reads the streams.
~ return place is not self.end and place.next is None ==> return False
page-stays-full: What is new is in the page, however much it had before.
~ self._size -= chunk.size ==> pass
page-without-bound: The page of the newest events has a bounded size.
- (self._size > PAGE_BYTES or self._chunks[0][0].read_at < oldest)
+ self._chunks[0][0].read_at < oldest
stream-keeps-its-events: Streams keep no events.
~ events = chunk if among is None ==> events = events_of(chunk) if among is None
stream-of-some-keeps-all-events: A stream of some ids keeps no events, either.
~ for each in chunk if each.id in among ==> for each in events_of(chunk) if each.id in among
numbers-expire-when-all-have-gone: Nobody is told of a loss after all guests have gone.
~ ('ZCOUNT', seen, '(' .. cut, '+inf') > 0 and redis.call('PTTL', seen) or 0 ==> ('PTTL', seen)
numbers-that-are-gone-are-lost-each-time: Numbers that a server evicts are one loss.
~ if number and last: ==> if last:
old-entries-stop-a-write: Entries from before a loss of their numbers stop no write.
~ redis.call('UNLINK', stream) -- ==> --
another-entry-with-the-same-number: Whoever goes on after an event that a server lost is told.
~ is_lost = "0" not in (after.entry, end.entry) and after.entry != end.entry ==> is_lost = False
first-events-are-missed: Whoever goes on from the beginning of a site is told what is missing.
~ is_first = packed == NOBODY_BEFORE and after.number == 0 ==> is_first = after.number == 0
quiet-time-is-a-loss: Whoever goes on after five quiet minutes has lost nothing.
~ is_lost = "0" not in (after.entry, end.entry) and after.entry != ==> is_lost = after.entry !=
loops-are-kept: An event loop that has ended is freed, also if iterators took turns in it.
~ ] = WeakValueDictionary() ==> ] = {}  # type: ignore
= redis/test_follow.py::test_a_goodbye_is_announced_with_its_moment
goodbye-is-announced-with-another-time: A goodbye is announced with its moment.
~ moment or later(score, redis.call('ZSCORE', bye, id))) ==> moment or score)
late-goodbye-is-announced-with-another-time: A late goodbye is announced with its moment, too.
~ go(id, score, moment) end ==> go(id, score) end
= redis/test_follow.py::test_a_crowd_of_streams_takes_turns_and_gets_one_text
streams-take-their-events-at-once: Pages go on while many streams receive a crowd.
~ asyncio.Semaphore(TURNS) ==> asyncio.Semaphore(999)
text-of-each-stream in sse.py: What many streams receive is encoded once.
~ _text_of = lru_cache(maxsize=64)(messages_of) ==> _text_of = messages_of
= redis/test_follow.py::test_a_reader_holds_few_events
events-are-kept-decoded: A process holds a bounded number of decoded events.
~ @lru_cache(maxsize=DECODED_CHUNKS) ==> @lru_cache(maxsize=None)
ids-of-events-are-kept in events/streams.py: The same of the ids in them.
~ @lru_cache(maxsize=64) ==> @lru_cache(maxsize=None)
messages-are-kept in sse.py: The same of their texts.
~ lru_cache(maxsize=64) ==> lru_cache(maxsize=None)
= redis/test_follow.py::test_after_a_clock_was_set_back_rooms_are_empty_and_people_come_again
leaves-wait-for-a-clock: After a clock was set back, people come and go again.
~ if cut_at - math.min(slack, window / 2) > now + 0 then ==> if false then
rooms-wait-for-a-clock: After a clock was set back, rooms are empty, and fill again.
~ (cut or redis.call('EXISTS', progress) == 0) then ==> redis.call('EXISTS', progress) == 0 then
moves-of-a-later-clock in stores/presence.lua: After that, whoever was in a room enters one again.
~ redis.call('UNLINK', rooms, moves) ==> redis.call('UNLINK', rooms)
= redis/test_follow.py::test_an_iterator_that_begins_while_all_are_ended_ends_none_that_begins_later
end-of-iterators-lasts: Iterators may begin after all were ended, also if one began meanwhile.
-         with self._lock:
-             era, self._era = self._era(), lambda: None
-             if era:
-                 era.is_over = True
-             leases = list(self._leases)
+         era, self._era = self._era(), lambda: None
+         if era:
+             era.is_over = True
+         with self._lock:
+             leases = list(self._leases)
= redis/test_follow.py::test_an_outage_is_reported_every_ten_seconds
outage-of-events-is-reported-each-second: While Redis stays away, that is said every ten seconds.
-         self.since = now
-         self.report
+         self.report
= redis/test_follow.py::test_a_program_that_forks_or_is_patched_receives_events
events-end-at-the-patch: Events go on if gevent patches after they were begun.
~ if self.page is not page: ==> if self._thread is not threading.current_thread():
queues-from-before-the-patch: Events hold no worker of gevent that patched after the import.
~ woken: queue.SimpleQueue[None] = queue ==> woken = __import__("_queue")
= redis/test_follow.py::test_nothing_counts_on_a_site_that_slept_until_its_keys_expired
progress-outlives-its-site: Nothing counts on a site that slept until its keys expired.
~ remaining > 0 and remaining or 1000 * lifetime ==> 1000 * lifetime
= redis/test_follow.py::test_only_the_kinds_of_the_setting_have_streams
events-of-a-store-without-ids: Who asks for events of crawlers is told which store they need.
~ store = "" if has_ids else ==> store = "" if True else
events-with-goodbyes: Without PRESENCE_EVENTS, no command is about events.
~ "lag": settings.lag_seconds(kind) ==> "lag": settings.lag_seconds(kind) or settings.flush_interval
events-of-each-kind: A kind that is not in PRESENCE_EVENTS announces nobody.
~ LAG_SECONDS if kind in self.events ==> LAG_SECONDS if self.events
= redis/test_follow.py::test_who_is_erased_before_they_were_written_is_never_announced
erased-user-is-announced: Whoever is erased before they were written is never announced.
~ if person.left.act is ERASED and person.sent < person.seen <= person.left.at: ==> if False:

= redis/test_open_connections.py
stop-forgets-who-left: Whoever left stays offline after a stop of the process, connected or not.
~ > since or self.left.at > NEVER ==> > since
crawler-counts-before-its-login: Whoever logs in late on a connection of a program is no crawler.
~ crawler.awaits_login = any(set_by_app) ==> crawler.awaits_login = False
prefetch-is-kept: Whatever is no visit is not kept, also if its body is never closed.
~ if purpose in UNCOUNTED: ==> if False:
pulses-of-guests-are-a-mistake: The hint about pulses allows for pages that only guests read.
~ pulses: if users read pages with the script, the " ==> pulses: the "
guest-is-waited-for-too-long: A guest on an open connection counts after five seconds.
~ 5.0  # seconds for which a slow request may still log a user in, at most ==> 50.0
slow-login-counts-as-guest: A user whom a layer logs in slowly is never counted as a guest.
~ if is_long or not found[1].awaits_login: ==> if True:
unclosed-body-stays-online: A response that nobody closes does not keep its user online.
~ self._visit.abandon() ==> pass
refreshes-hold-up-other-threads: Other threads have their turn while connections are refreshed.
~ if not number % REFRESHED_IN_A_ROW: ==> if False:
= redis/test_open_connections.py redis/test_recorder.py
open-connection-goes-offline: An open connection keeps its user online.
~ if now - self.stamp < interval: ==> if True:
= redis/test_open_connections.py::test_open_connections_are_refreshed_one_after_the_other
connections-share-a-moment: Open connections are refreshed one after the other.
-         for number, visit in enumerate(list(self), 1):
-             # Not the same moment for all: a sweep takes all users of a moment together.
-             now = self._stamp()
+         now = self._stamp()
+         for number, visit in enumerate(list(self), 1):

= redis/test_outages.py::test_an_outage_ends_also_if_nobody_comes
outage-of-an-idle-process-stays: An outage that a process without visitors has met ends with it.
~ self.has_answered = True ==> self.has_answered = False
outage-of-who-follows-events-stays: It ends whichever thread finds out.
~ driver.health, self._lease.lock ==> driver.health, self._lease.lock; self.has_answered = False
outage-ends-before-the-write: It lasts until that is written which a server has lost.
~ self.health.is_outage and self.people.is_empty: ==> self.health.is_outage:
= redis/test_outages.py::test_an_outage_lasts_when_all_who_waited_have_expired
outage-ends-with-who-expire: An outage lasts until the server answers, not until nobody waits.
~ if has_failed and not written: ==> if False:
refusal-ends-an-outage: It lasts while the server permits nothing.
~ self.forbidden("upkeep", error) ==> self.forbidden("upkeep", error); self.has_answered = True
= redis/test_outages.py
shorter-window-looks-like-a-loss: A process with a shorter window makes no idle one notice a loss.
~ now - max(self.window, SharedSettings.EXPIRY_SECONDS) - 2 ==> now - self.window - 2
store-of-another-kind-differs: If kinds differ, no process is told to set the store of a kind.
~ self._settings.get(name, value) != value ==> self._settings.get(name, "") != value
reader-waits-for-the-outage-twice: A reader asks no server that the write before it found away.
~ if attempt.query is not None and is_silence(error): ==> if False:
outage-of-a-shard-ends-early: The outage of a shard lasts until all of it is written.
~ return has_left ==> return False
each-shard-is-a-failure: A server that refuses all of its shards has failed once.
~ if target not in attempt.avoid: ==> if True:
failed-write-is-lost: What could not be written is written later.
~ has_left = people.restore() ==> has_left = False
failed-node-is-asked-again: A node that is away costs one timeout in a write.
~ attempt.avoid.add(target) ==> pass
lost-key-makes-new-guests: A guest stays one guest if the server has lost the key of hashes.
~ self._proposal = driver.run(agreed, deadline) ==> driver.run(agreed, deadline)
known-guests-keep-their-old-key: Ids change with the key that a site's processes share.
~ if shard is None or person.key != key: ==> if shard is None:
unbounded-pauses: Redis is tried again within five seconds.
- min(self._first_pause * 2.0 ** min(failures, 16), MAX_PAUSE_SECONDS)
+ self._first_pause * 2.0 ** min(failures, 16)
outage-loses-last-seen-time: The last-seen time of a user outlives an outage longer than the window.
~ since = min(since, retained_since[person.who[0]]) ==> pass
differing-settings-are-silent: Settings that differ between processes are logged.
~ self._hints.warn("setting", name, value) ==> pass
guests-without-the-key-are-one: Guests wait until the key of hashes is known.
~ if not (backend.layout.is_agreed and has_key): ==> if not backend.layout.is_agreed:
shorter-retention-wins: The longest retention of all processes is respected.
~ keep_seconds[kind] = max(keep_seconds[kind], float(value)) ==> pass
full-server-answers-nobody: A full server, which refuses writes, answers readers.
~ attempt.query is not None and is_silence(error): ==> attempt.query is not None:
refused-server-is-not-cleaned: A full server is cleaned up and records again.
~ is_refused = health.is_refusing() and ==> is_refused = False and
failed-sample-is-not-retried: A sample that failed is tried again in its minute.
- plans = [store.count(now, self._window) for store in self._stores.values()]
+ self._sample_at = float((minute + 1) * keys.MINUTE)
+                 plans = [store.count(now, self._window) for store in self._stores.values()]
= redis/test_outages.py redis/test_recorder.py
sighting-at-the-end: A visit counts from its arrival, not from its end.
~ who, self.stamp, self.arrival, SEEN ==> who, recorder.stamp(), self.arrival, SEEN
special-sighting-at-the-end: A visit counts from its arrival, not from its end.
~ at, noted = self.stamp, who ==> at, noted = now, who
= redis/test_outages.py redis/test_slow_reads.py
long-timeout: A hung server holds up a reader for half a second.
~ TIMEOUT = 0.5 ==> TIMEOUT = 5.0
= redis/test_outages.py
outage-fills-the-log: The log has one warning when an outage starts.
~ if is_first: ==> if True:
= redis/test_outages.py::test_a_request_that_is_interrupted_once_is_a_visit_wherever_it_is
interrupt-leaves-the-lock-held: After an interrupt, no visit waits for a lock for ever.
- with self.lock:  # it takes twice as long, but an interrupt never leaves the lock held
+ self.lock.acquire()
+         with __import__("contextlib").ExitStack() as held:
+             held.callback(self.lock.release)
interrupt-loses-a-plain-visit: A request that is interrupted when it ends is a visit.
- recorder.record(who, self.stamp, self.arrival, SEEN, self.room, inventor)
-                 self._noted = who
+ self._noted = who
+                 recorder.record(who, self.stamp, self.arrival, SEEN, self.room, inventor)
+                 pass
interrupt-loses-a-visit-that-asks: A request that is interrupted when it asks is a visit.
- self.recorder.record(who, at, self.arrival, act, self.room, inventor)
-         self._noted = noted
+ self._noted = noted
+         self.recorder.record(who, at, self.arrival, act, self.room, inventor)
+         pass
= redis/test_outages.py::test_a_start_that_is_interrupted_leaves_no_second_thread
second-thread-writes: A thread that writes, and whose start was interrupted, ends.
~ former.set()  # an interrupt ==> pass  #
second-thread-reads-events: A thread that reads events, and whose start was interrupted, ends.
~ if self.page is not page: ==> if False:
= redis/test_outages.py::test_a_server_that_is_away_is_asked_once
look-asks-a-server-that-is-away: The look for lost data leaves a server alone that is away.
~ in written if health.is_well(driver.node_of(shard.name))] ==> in written]
= redis/test_outages.py::test_a_full_server_records_again
full-server-is-kept-busy: A process makes room on a full server twice a minute at most.
~ health.is_refusing() and stamp >= self._made_room_at + CLEAN_EVERY ==> health.is_refusing()
= redis/test_outages.py::test_a_handler_that_is_interrupted_in_a_write_loses_nobody
interrupt-loses-what-is-written: A handler that is interrupted while it writes loses nobody.
-         finally:  # nor must an interrupt of a handler that writes
-             has_left = people.restore()
+         else:
+             has_left = people.restore()
+         finally:
= redis/test_outages.py::test_a_handler_that_is_interrupted_loses_nobody_wherever_it_is
deadline-of-an-interrupted-read: A read has no deadline of one that was interrupted before.
-             began, outer = time.monotonic(), DEADLINE.get()
-             try:
-                 DEADLINE.set(min(outer, began + seconds_left))  # an earlier one stays in force
+             began, outer = time.monotonic(), DEADLINE.get()
+             DEADLINE.set(min(outer, began + seconds_left))
+             try:
interrupt-loses-who-is-noted: A handler that is interrupted while it notes somebody loses nobody.
-                     self._enqueue(person)  # first: an interrupt must not leave out who waits
-                     self._seen_again += person in self._in_flight
-                     self.pending += 1
-                     if at > person.seen:
-                         person.seen = at
+                     self._seen_again += person in self._in_flight
+                     self.pending += 1
+                     if at > person.seen:
+                         person.seen = at
+                         self._enqueue(person)
interrupt-loses-who-is-taken: A handler that is interrupted while it takes people loses nobody.
-                 person = queue[0]
-                 seen = person.seen if person.seen > person.sent else None
+                 person = queue.popleft()
+                 person.is_queued = False
+                 queue.appendleft(person)
+                 seen = person.seen if person.seen > person.sent else None
= redis/test_outages.py::test_the_end_of_an_outage_says_what_was_dropped_in_it
dropped-of-all-outages: The end of an outage says how many sightings were dropped in it.
~ dropped - self._dropped_before, ==> dropped,
= redis/test_outages.py::test_twelve_recorders_take_two_seconds_together_to_end
each-recorder-takes-two-seconds: All recorders of a process end within two seconds.
~ recorder.close(remaining / (len(recorders) - number)) ==> recorder.close()

= redis/test_recorder.py
ids-of-bytes-and-text in identity/ids.py: A strict Python (-bb) serves a guest of the first request.
~ return int.from_bytes(digest) if ==> return digest if
limit-grows-with-each-write: While Redis is down, a bounded number of people wait, at any time.
~ self._in_flight, self._seen_again = {}, 0 ==> self._in_flight = {}
child-is-made-anew-twice: Requests that find a fork at once lose nobody.
-             with _resetting:
-                 if self.worker.is_inherited:
-                     self.reset(self.people.waiting())
+             self.reset(self.people.waiting())
agreement-ends-amid-a-site: What processes agree on lasts while one of them runs.
~ (propose, ("EXPIRE", key, ttl), ("GET", key)), atomic ==> (propose, ("GET", key)), atomic
settings-are-kept-for-ever: Settings of an hour ago are removed.
~ "-inf", now - self.EXPIRY_SECONDS ==> "-inf", -1
kind-of-another-process: A kind that only another process has is left to it.
~ if kind in keep_seconds: ==> if True:
ended-process-differs: A setting of a process that has ended is no longer reported.
~ elif moment > now - self.FRESH_SECONDS and self._settings.get ==> elif self._settings.get
write-frees-the-lock-of-another: A write ends although another thread made the recorder anew.
~ writer.lock.release() ==> self.writer.lock.release()
people-without-lock in people.py: Threads of a process record at once without losing a sighting.
~ self.lock = threading.Lock() ==> self.lock: Any = threading.Semaphore(99)
newer-sighting-forgets-an-arrival: A sighting that was not written is merged with the next.
~ self.arrival = max(self.arrival, taken.arrival) ==> self.arrival = self.arrival
write-without-deadline: An exit that is out of time starts no round trip.
~ query is not None), attempt.deadline ==> query is not None)
fork-without-hook: A child whose fork called no hook records.
~ return getpid() != self._pid or type(self._inline) is not type(threading.Lock()) ==> return False
departure-is-left-to-the-parent: Whom such a child takes offline first leaves.
-         self._check_process()
-         stamp = self.stamp()
+         stamp = self.stamp()
child-writes-for-its-parent: A forked child does not write what its parent holds.
~ return  # a forked child: the parent writes its own sightings ==> pass
thread-goes-on: Closing a recorder ends its thread.
~ self.stopping.set() ==> pass
exit-starts-a-server: The end of a process starts no embedded server.
~ driver = self.backend.writing_driver.joining() ==> driver = self.backend.writing_driver
exit-with-an-open-visit-starts-one: The same while a visit is open.
~ if self.worker.stopping.is_set():  # `close` ==> if True:  # `close`
closed-recorder-starts-none: The next visit after a close starts an embedded server.
~ if self.worker.stopping.is_set():  # `close` ==> if False:  # `close`
open-visits-are-not-flushed: The end of a process writes the visits that are open.
-         for visit in list(self):
-             visit.note()
unbounded-memory-in-an-outage: While Redis is down, a bounded number of people wait.
~ self.pending - self._seen_again >= self._most_pending ==> False
= redis/test_recorder.py::test_a_flush_waits_for_the_thread_that_imports_redis_py
import-holds-up-writers: A flush waits for a thread that still imports its client.
- import_library(self.settings.redis_url.scheme)
= redis/test_recorder.py::test_a_redis_py_that_cannot_be_imported_is_an_outage
unknown-redis-py-raises: A redis-py that cannot be imported is an outage of Redis.
~ with _importing, suppress(Exception): ==> with _importing, suppress(ImportError):
= redis/test_recorder.py::test_a_sighting_that_arrives_during_a_flush_is_no_failure
late-sighting-is-a-failure: A sighting that arrives during a flush is no failure of it.
~ attempt.failure is None and not has_left ==> attempt.failure is None and people.is_empty
= redis/test_recorder.py::test_an_app_asks_the_client_that_its_wrapper_is_given
client-of-a-wsgi-app-is-dropped in wsgi.py: A wrapper uses the client that it is given.
~ recorder_for(settings, client, clock) ==> recorder_for(settings, None, clock)
client-of-an-asgi-app-is-dropped in asgi.py: The same over ASGI.
~ recorder_for(settings, client, clock) ==> recorder_for(settings, None, clock)
= redis/test_recorder.py::test_an_exit_out_of_time_leaves_the_upkeep_to_run_out
exit-waits-to-give-up-the-upkeep: All recorders of a process end within two seconds, also at rest.
~ driver.run(self._lease.give_up(), deadline) ==> driver.run(self._lease.give_up())
= redis/test_recorder.py::test_an_exit_out_of_time_starts_no_round_trip
exit-asks-for-the-time: An exit that is out of time does not ask the server for its time.
~ run(clock.synchronise(TRUSTED / 5), deadline) ==> run(clock.synchronise(TRUSTED / 5))
exit-agrees-first: An exit that is out of time agrees on nothing.
~ driver.run(backend.layout.claim(now), deadline) ==> driver.run(backend.layout.claim(now))
= redis/test_recorder.py::test_only_an_exit_is_in_a_hurry
each-flush-is-in-a-hurry: A flush may take longer than an exit has.
~ flush(self, seconds: float = math.inf) ==> flush(self, seconds: float = FLUSH_SECONDS)
= redis/test_recorder.py::test_rounds_forget_who_has_long_done_nothing
users-are-never-forgotten: A process forgets who did nothing for a window, without guests too.
~ if now >= self.people.period_ends: ==> if False:
= redis/test_recorder.py::test_sightings_that_wait_are_merged_bounded_and_counted
unwritten-sighting-counts-twice: An unwritten sighting is merged under a newer one.
-                 if person.restore(taken):
-                     self.pending -= 1
-                     self.coalesced += 1
+                 person.restore(taken)
user-in-flight-is-refused: Whoever is being written is refreshed although the memory is full.
-                     and person not in self._in_flight  # or else they wait already
= redis/test_recorder.py::test_a_first_question_waits_for_the_import_of_redis_py
import-is-an-outage: A slow import of redis-py is no outage of Redis.
- import_library(self.url.scheme)
= redis/test_recorder.py::test_the_thread_rests_while_nothing_waits
thread-never-rests: The thread of a site where nobody comes uses no processor.
~ self._woken.clear() ==> pass
= redis/test_recorder.py::test_where_no_thread_can_start_a_request_writes_until_one_can
thread-that-cannot-be-made: A request fails nowhere because no thread can be made for the writes.
- with suppress(RuntimeError):
-                         thread =
+ if True:
+                         thread =

= redis/test_slow_reads.py
exit-looks-up-a-known-host: A name service that hangs holds up no exit.
~ if name in _found and not main_thread().is_alive(): ==> if False:
looks-up-once-without-threads: A process without threads finds a Redis that has moved.
~ if name in _found and not main_thread().is_alive(): ==> if name in _found:
busy-connections-are-an-outage: Connections that are all in use are no outage.
~ if isinstance(error, ConnectionsBusy): ==> if False:
readers-do-not-wait-for-a-connection: Hundreds of readers at once are all answered.
~ acquire(timeout=min(max(remaining(), 0.0) / 2, threading.TIMEOUT_MAX)) ==> acquire(blocking=False)
limit-of-connections-is-not-read: The option max_connections limits the readers.
~ int(self.address.options.get("max_connections", CONNECTIONS)) ==> CONNECTIONS
readers-take-all-connections: Readers leave connections for the writer.
~ RESERVED = 4 ==> RESERVED = 0
timeout-set-for-each-packet: A timeout that is set is not set again, for that is a system call.
~ if timeout != self._applied_timeout: ==> if timeout:
reads-without-limit: All round trips of a read share a deadline of two seconds.
~ READ_SECONDS = 2.0 ==> READ_SECONDS = 60.0
each-byte-renews-the-timeout: A server that sends a byte now and then holds no reader.
~ seconds = DEADLINE.get() - time.monotonic() ==> seconds = math.inf
name-service-holds-readers: A slow name service holds no reader.
~ look_up.result(None if seconds == math.inf else max(seconds, 0.0)) ==> look_up.result()
coroutines-wait-for-threads: However many coroutines ask, they learn of an outage in time.
-             return await run_in_thread(self.backend.driver, plan, self.recorder.read)
+             return await in_thread(self.recorder.read, plan)
= redis/test_slow_reads.py::test_who_waited_for_a_thread_waits_no_longer_for_redis_than_others
wait-for-a-thread-is-an-outage: Who waited too long for a thread learns that the process is busy.
~ if waited >= READ_SECONDS: ==> if False:
wait-for-a-thread-is-forgotten: Who waited for a thread waits no longer for Redis than others.
~ waited=time.monotonic() - asked_at ==> waited=0.0
= redis/test_slow_reads.py::test_as_many_coroutines_read_at_once_as_the_url_permits
coroutines-read-sixteen-at-once: As many coroutines read at once as the URL permits connections.
~ max(CONNECTIONS, driver.url.max_readers) ==> CONNECTIONS
= redis/test_slow_reads.py::test_readers_of_a_board_who_wait_delay_no_handler
readers-of-a-board-delay-handlers: Many readers of the board who wait for Redis delay no handler.
~ outside_loop(self.respond, request, use="board") ==> outside_loop(self.respond, request)
= redis/test_slow_reads.py::test_a_child_reads_though_its_parent_used_all_connections
child-waits-for-its-parent: A child reads although its parent used all connections.
~ user = os.getpid(), threading.Lock ==> user = 0, threading.Lock
= redis/test_slow_reads.py::test_a_handler_that_is_cancelled_takes_offline_all_the_same
departure-waits-for-a-thread: Whoever a handler takes offline leaves also if it is cancelled then.
-             self.recorder.depart(who, act)
-             await in_thread(self.recorder.write_for_reader)
+             await in_thread(self.recorder.depart, who, act)
= redis/test_slow_reads.py::test_a_long_list_may_take_longer
long-list-in-a-thread-is-cut-off: A long list may take longer, also in a thread.
~ run(plan, waited=time ==> run(plan, asked_at + 2.0, waited=time
prompt-round-trips-count: A list may be as long as it likes, if the server is prompt.
~ if seconds > PROMPT_SECONDS: ==> if seconds > 0:
= redis/test_slow_reads.py::test_a_reader_does_not_wait_for_the_threads_of_the_app
readers-share-the-threads-of-the-app: A reader does not wait for threads that the app keeps busy.
~ run_in_executor(_threads(os.getpid(), use, most), work) ==> run_in_executor(None, work)

= redis/test_slow_reads.py::test_a_reader_that_is_killed_keeps_no_slot
killed-reader-keeps-its-slot: A reader that is killed under gevent gives its slot back.
-             free.release()
-             raise
+             raise
= redis/test_slow_reads.py::test_a_server_reads_after_the_main_thread_has_ended
no-reads-after-the-main-thread: A server in a thread reads after the main thread has ended.
~ if not threading.main_thread().is_alive():  # Python ==> if False:  # Python
= redis/test_slow_reads.py::test_a_handler_that_asks_often_waits_for_an_outage_once
every-question-meets-the-outage: A request waits for an outage once, however often its handler asks.
~ self._asks_after = time.monotonic() + OUTAGE_PAUSE ==> self._asks_after = time.monotonic()

= redis/test_templates.py
template-asks-in-the-event-loop: A template in the event loop is refused with the remedy.
~ if isinstance(visit, AsyncPresence) and is_in_loop(): ==> if False:

= redis/test_upkeep.py
node-of-the-lease-stops-the-upkeep: A node with the lease of a Cluster that is away stops no other.
~ if driver.node_of(lease.key) == "": ==> if True:
lease-of-a-killed-process-is-looked-at-late: Whoever follows events soon announces who has gone.
~ self._pause, self._look_at = 0.0, -math.inf ==> self._pause = 0.0
lease-of-a-killed-process-is-seldom-looked-at: The same, if it looked just before.
~ self._pause, self._look_at = 0.0, -math.inf ==> self._look_at = -math.inf
rooms-never-expire: Every key expires, also those of rooms.
~ do redis.call('EXPIRE', key, math.ceil(window + slack)) end ==> do end
lease-of-another-time-is-waited-for: A lease from before the clock was set back is taken.
~ is_stale = left > 1000 * self._most_seconds ==> is_stale = False
gone-ids-stay-for-ever: Who left is not stored for longer than the retention.
~ = yield from self._remove_stale(self.key.gone, now) ==> = False, False
last-minute-is-forgotten: Who left is stored to the end of their last minute.
~ cut = now - (self.ttl - keys.SLACK) - self.resolution ==> cut = now - (self.ttl - keys.SLACK)
clean-up-removes-the-living: Clean-up removes only what nobody can ask for.
~ cut = now - (self.ttl - keys.SLACK) - self.resolution ==> cut = now - self.window
lost-history-is-kept-for-ever: After a loss of data, every key has a time to live again.
~ self._history.renewed = None  # the server may have lost the lease with all keys ==> pass
peak-expires-amid-a-site: The peak lasts while the site is sampled.
~ writes.append(("EXPIRE", keys.peak(self._prefix, kind), PEAK_TTL)) ==> pass
peak-is-the-newest: The peak is the first of the highest minutes.
~ if count > (highest.count if highest else 0): ==> if count:
minute-is-sampled-twice: Each minute has one sample: the first.
~ ("HSETNX", key, minute_of_day, count) ==> ("HSET", key, minute_of_day, count)
expired-samples-are-shown: A history contains no sample older than its retention.
~ oldest = max(since, now - self._keep_seconds) ==> oldest = since
shard-of-a-node-that-is-back-waits: A shard passed over is swept as soon as its node is back.
~ is_complete = len(moments) == len(self.after) ==> is_complete = not failures
two-holders-of-the-upkeep: A process that lost the lease of the upkeep steps down.
~ is_mine = holder is not None and decoded(holder) == self._who ==> is_mine = holder is not None
upkeep-of-another-is-given-up: Only the holder gives up the lease of the upkeep.
~ if holder is not None and decoded(holder) == self._who: ==> if holder is not None:
full-server-is-a-missing-permission: A server that is full is no missing permission.
-                 if not _is_forbidden(error):
-                     raise
full-server-forbids-the-clean-up: The same in a clean-up.
~ if job is not self._clean or not _is_forbidden(error): ==> if job is not self._clean:
nodes-that-are-away-are-an-error: Nodes that are known to be away are no error of the upkeep.
~ if failures and not moments: ==> if not moments:
what-shows-in-no-id-stays: What shows in no id that was seen is cleaned up within ten minutes.
~ 0 <= now - done_at < min(CLEAN_IDLE, after): ==> 0 <= now - done_at < after:
follower-asks-for-the-lease-each-second: Others sleep until the lease of the upkeep may have ended.
~ stamp + max(wait, self._pause) + jitter ==> stamp + self._pause + jitter
lease-runs-out-before-its-holder-looks: The lease of the upkeep outlasts the next look.
~ max(0.0, self._look_at - stamp) + LEASE_MARGIN ==> LEASE_MARGIN
killed-holder-keeps-upkeep: When the holder of the upkeep is killed, another goes on within seconds.
~ LEASE_MARGIN = 6.0 ==> LEASE_MARGIN = 600.0
child-shares-the-upkeep: A forked child does not take the upkeep of its parent for its own.
~ if self._lease.pid != getpid(): ==> if False:
child-ends-the-upkeep: A forked child that exits leaves the lease to its parent, and does not wait.
~ if self._lease.pid == getpid() and self._lease.is_held ==> if self._lease.is_held
upkeep-wakes-for-each-kind: An idle process looks for all who may have gone when it is awake.
~ if job is not self._clean or _is_due( ==> if job.is_of_events or _is_due(
forbidden-upkeep-is-asked-for-at-once: A command that is forbidden is not sent in each round.
~ self._look_at = stamp + LEASE_MARGIN ==> pass
= redis/test_upkeep.py::test_a_lease_that_cannot_be_given_up_hinders_no_process_that_ends
lease-fails-the-end: A lease that cannot be given up hinders no process that ends.
- with suppress(PresenceError):
-                 driver.run(self._lease.give_up(), deadline)
+ driver.run(self._lease.give_up(), deadline)
= redis/test_upkeep.py::test_a_node_that_is_away_is_tried_once_for_all_its_shards
node-is-tried-for-each-shard: A sweep tries a node that is away once.
~ failures[shard.name if is_own else node] = outcome ==> failures[shard.name] = outcome
= redis/test_upkeep.py::test_a_shard_that_cannot_be_swept_stops_the_sweep_of_no_other_kind
one-shard-stops-those-of-its-node: A key of a wrong type is the fault of one shard.
~ is_own = not isinstance(outcome, PresenceUnavailable) ==> is_own = False
one-shard-stops-all-sweeps: A shard that cannot be swept stops the sweep of no other kind.
~ if failures and not moments: ==> if failures:
= redis/test_upkeep.py::test_after_a_failover_who_has_gone_is_announced_again
gone-in-the-data-of-another-server: After a failover, who has gone is announced again.
~ sweep.done.clear() ==> pass
= redis/test_upkeep.py::test_an_idle_process_sends_few_commands
oldest-event-at-each-look: An idle process asks for the oldest event only when it may be due.
~ if _is_due(self.full_until.get(shard, -math.inf), now): ==> if True:
= redis/test_upkeep.py::test_many_who_have_gone_at_once_are_announced_in_one_round
a-step-a-round: Many who have gone at once are announced in one round.
~ return self.due_at <= now ==> return self.due_at < now
= redis/test_upkeep.py::test_after_a_clock_was_set_back_the_holder_goes_on
upkeep-waits-for-a-clock: After a clock was set back, the upkeep goes on.
~ and 0 <= now - done_at < min(CLEAN_IDLE, after): ==> and now - done_at < min(CLEAN_IDLE, after):
= redis/test_upkeep.py::test_two_processes_that_clean_up_at_once_remove_nobody_who_is_online
clean-up-goes-by-rank: Two processes that clean up at once remove nobody who is online.
- (("ZCARD", name), ("ZREMRANGEBYSCORE", name, "-inf", end)), atomic=True
+ (
+ ("ZCARD", name),
+ ("ZREMRANGEBYRANK", name, 0, CLEANED - 1)
+ if last
+ else ("ZREMRANGEBYSCORE", name, "-inf", cut),
+ ),
+ atomic=True,
= redis/test_upkeep.py::test_a_command_removes_a_thousand_at_most_and_rounds_go_on
clean-up-in-one-command: A clean-up removes a bounded number of ids in a command.
~ end = pairs(last)[0][1] if last else cut ==> end = cut

= redis/test_walks.py::test_rooms_and_events_are_true_with_few_commands
forbidden-upkeep-is-silent: The log says once that the user of Redis may not do the upkeep.
~ self.forbidden("upkeep", error) ==> pass
forbidden-upkeep-is-an-outage: People are recorded although the upkeep is forbidden.
~ if not _is_forbidden(error): ==> if True:

= security/test_attacks.py
time-beyond-all-numbers: A token with a time that is no number for a clock identifies nobody.
~ float(int(claims["exp"])) if ==> int(claims["exp"]) if
token-chooses-its-algorithm: A public key is never used as a shared secret.
~ return ["HS256", "HS384", "HS512"] ==> return ["HS256", "HS384", "HS512", "none"]
public-key-signs-a-cookie: A public key of tokens, which anybody may know, is no secret of a cookie.
~ is_token = self.source == "bearer" ==> is_token = True
expired-session-counts: An expired session identifies nobody.
~ return id if until > now - request.age else _EXPIRED ==> return id
session-outlives-its-framework: A session counts for as long as its framework accepts it.
~ STARLETTE_SECONDS = 14 * DAY ==> STARLETTE_SECONDS = 13 * DAY
pyramid-session-never-expires: An expired session of Pyramid identifies nobody.
~ return session, renewed + PYRAMID_SECONDS ==> return session, _NEVER
huge-token-is-verified: A token that is too long is not verified.
~ if len(value) > MAX_TOKEN_LENGTH or not value.isascii(): ==> if not value.isascii():
header-of-a-proxy-is-read-late: Guests behind a proxy stay apart if a layer removes its header.
~ self.forwarded = state.get("HTTP_FORWARDED"), state.get("HTTP_X_FORWARDED_FOR") ==> pass
odd-address-fails-the-request: A server's odd address fails no request.
-         peer = _peer(request)
+         peer = parse_address(request.peer or "")

= security/test_canary.py::test_a_finished_visit_holds_no_secret
headers-are-kept: A visit that is over holds nothing of its request.
~ self.forwarded, self.raw_headers = OVER, None, None, None ==> self.forwarded = OVER, None, None
headers-are-kept-if-off: Nor does a visit of a site that is switched off.
~ end = StateRequest.release ==> end = Visit.note

= security/test_defects.py
slow-globs: A long path costs little, whatever `*` is in the settings.
~ f"(?>.*?{part})" ==> f"(?:.*?{part})"
thread-keeps-its-recorder: A recorder that nobody uses is collected, and its thread ends.
~ _stamp = WeakMethod(run_once), interval, stamp ==> _stamp = (lambda: run_once), interval, stamp
idle-connections-stay-open: `aclose` closes the connections that nobody uses.
~ self._close_idle(clients[os.getpid(), self.url]) ==> pass
handler-waits-in-an-outage: In an outage, no handler waits for a write.
~ self._write(set(self.health.failing)) ==> self._write(set())
slow-answer-sets-the-clock: A slow first connection does not make the clock uncertain.
~ if high - low > MAX_UNCERTAINTY: ==> if False:
user-who-was-there-comes-back: Whoever is named while a rule is read replaces who was there.
- if self._identified is NOBODY:
-                 return
+ if True:
+                 return
reused-environ-keeps-its-user: An environ that a server uses again does not keep its user.
~ environ.pop(USER, None) ==> pass
= security/test_defects.py redis/test_outages.py contract/test_departures.py
lost-connection-is-not-counted in connections/drivers.py:
  After a lost connection, nothing is trusted that another server said.
~ self.health.lost_connection() ==> pass
= security/test_defects.py::test_a_demoted_primary_is_abandoned_and_no_key_is_logged
demoted-primary-is-kept: A server that refuses a write may be the primary no longer.
~ if RedisRefused in map(type, replies): ==> if False:
= security/test_defects.py::test_a_late_app_does_not_start_with_wrong_settings
trio-starts-with-wrong-settings: Under trio, too, a site does not start with wrong settings.
~ return is_trio() ==> return False
= security/test_defects.py::test_internal_errors_lose_nobody
own-error-fails-the-write: An error of the package itself fails no write, and loses no sighting.
~ Exception as error:  # an error of our ==> PresenceUnavailable as error:  # an error of our

= servers/test_board.py
streams-hold-up-the-server: Streams end when the web server is asked to exit.
~ if is_server_stopping(): ==> if False:
page-does-not-learn-what-it-missed: A stream reports events that it missed.
~ yield LOST ==> yield BEAT
streams-without-bound: A process serves a bounded number of streams.
~ elif answer.follows is not None and self._open_streams >= MAX_STREAMS: ==> elif False:
streams-outlive-the-server: Streams of the board end when the lifespan ends.
~ self.recorder.backend.close_events() ==> pass
= servers/test_board.py::test_a_stream_ends_if_a_layer_no_longer_receives
stream-without-its-reader: A stream ends also if a layer raises when it waits for the end.
-             finally:
-                 await events.aclose()
+             except ZeroDivisionError:
+                 pass
+             await events.aclose()
= servers/test_board.py::test_an_error_of_the_server_reaches_it_unchanged
error-of-the-server-is-lost in board/asgi.py: An error of the server reaches it as it was raised.
~ except OSError: ==> except Exception:
= servers/test_board.py::test_others_get_no_stream
length-of-what-has-none: The answer to HEAD names no length that a GET does not have.
~ if self.follows is None:  # nobody knows the length of others ==> if True:

= servers/test_command_answers.py
secret-is-printed: The doctor prints no secret.
~ shown = "***" if value else "" ==> pass
outage-has-the-status-of-a-mistake: An outage has an exit status of its own.
~ status = UNAVAILABLE if isinstance(error, PresenceUnavailable) else USAGE ==> status = USAGE
id-commands-the-terminal: An id cannot command the terminal.
~ c if c.isprintable() else c.encode("unicode_escape").decode() for c in text ==> c for c in text
secret-in-the-configuration: `presence config` shows no secret.
~ if not setting.repr:  # a secret ==> if False:
configuration-of-nothing-is-the-default: What `presence config` prints is what the variables accept.
~ parsers.text_of(value) or (setting.default and "none") ==> parsers.text_of(value)
= servers/test_command_answers.py::test_help_begins_with_a_sentence_and_explains_each_option
option-without-help: The help of a command explains each option.
- help="How often to read the counts.",

= servers/test_command_events.py
wait-ends-in-an-outage in cli/commands.py: `presence wait` goes on through an outage.
~ failure = error ==> raise error
wait-ignores-sigterm: `presence wait` ends at SIGTERM, also as the first process of a container.
- context.exit_on_signals([signal.SIGTERM])  # Ctrl-C is no answer
= servers/test_command_events.py::test_invalid_arguments_are_reported
key-of-no-text-is-an-outage in cli/live.py: A key that is no text is wrong usage, and no outage.
~ if not is_text(key): ==> if False:

= servers/test_command_terminal.py
terminal-is-silent: At a terminal, a command that has changed something prints what.
~ if is_terminal(): ==> if not is_terminal():
= servers/test_command_terminal.py::test_hours_that_are_no_number_are_reported_at_a_terminal
hours-of-no-number: Hours that are no number end `presence watch` with a message.
- self._hours = reader, window, kind, hours
+ self._hours = reader, window, kind, timedelta(hours=hours) / timedelta(hours=1)
= servers/test_command_terminal.py::test_recorded_history_is_read_once_a_minute
watch-reads-its-history-each-time: `presence watch` reads the recorded history once a minute.
~ if at >= self._history_due: ==> if True:

= servers/test_demo.py
demo-has-the-shards-of-a-site: The settings of a site change neither a demo nor commands beside it.
~ "PRESENCE_SHARDS": "1", ==> "PRESENCE_BOTS": "count",
empty-variable-of-a-demo-is-set: For a demo, too, an empty variable counts as unset.
~ for name, value in os.environ.items() if value ==> for name, value in os.environ.items()
demo-in-memory in demo/server.py:
  A demo does not begin where each of its processes would have its own numbers.
~ if url.scheme == "memory": ==> if False:
= servers/test_demo.py::test_the_crowd_is_labelled_and_moves_from_the_start
demo-starts-again: SIGHUP ends the demo.
~ handle_term = arbiter.handle_hup = arbiter.handle_int ==> handle_term = arbiter.handle_int

= servers/test_django_admin.py
admin-shows-an-outage-as-offline: In an outage, the admin's list has dashes.
~ if user._presence is None: ==> if False:
blank-id-breaks-the-admin in django/admin.py: An account without an id breaks no page of the admin.
~ asked = [id for _, id in ids if id] ==> asked = [id for _, id in ids]

= servers/test_doctor.py
scripts-by-hash-are-not-asked-for: The doctor names the command that runs scripts by their hash.
~ 1, key), ("EVALSHA", script.digest, 1, key))) ==> 1, key),))
scripts-of-hyperloglogs: A server without scripts is right for a site that has only HyperLogLogs.
~ if settings.board_path or stores != {"hyperloglog"}: ==> if True:
chart-needs-no-script: The board of such a site needs scripts.
~ if settings.board_path or stores != {"hyperloglog"}: ==> if stores != {"hyperloglog"}:
missing-command-is-right: The doctor names a command that the server lacks.
~ ours = [_commands(settings), _shards(backend), ==> ours = [_shards(backend),
lasting-key-is-right: The doctor finds keys that never expire.
~ if int(life) == -1] ==> if int(life) == -3]
replica-is-right: The doctor reports a replica, on which nobody is recorded.
~ bool(int(server.get("slave_read_only", 0))) ==> False
hosted-server-is-wrong: The eviction policy of a hosted server is no error while there is memory.
~ policy.startswith("volatile") ==> False
life-of-what-never-expires: The doctor names no lifetime of keys that never expire.
- {never if lasting else f'expire within {longest}'}
+ expire within {longest}{never if lasting else ''}

= servers/test_loading.py
app-of-the-wrong-kind: An ASGI app is refused by the WSGI wrapper.
~ if fits[protocol]: ==> if True:
class-with-a-metaclass-is-no-app: A class of which nobody knows what a call returns is accepted.
~ makes_instance = type(app).__call__ is type.__call__ and ==> makes_instance =

= servers/test_logins.py::test_of_two_cookies_of_a_name_the_frameworks_choice_wins
first-of-two-session-cookies: Of two cookies with the same name, the choice of the framework wins.
~ re.compile(rf"\A(?s:.*;)?{pair}" if last else rf"(?:^|;){pair}") ==> re.compile(rf"(?:^|;){pair}")

= servers/test_metrics.py
every-scrape-reads: Many scrapes cause one read a second.
~ if self._site is None or time.monotonic() >= self.next_read: ==> if True:
scrape-in-the-loop: No part of a scrape is in the event loop, however long another one ago.
- await outside_loop(lambda: at_once(serve(scope, receive_at_once, send_later)))
+ at_once(serve(scope, receive_at_once, send_later))
outage-is-not-measured: A scrape in an outage reports it.
~ self._site = {} ==> pass
= servers/test_metrics.py::test_the_app_serves_metrics_in_any_loop_and_collects_outside_of_it
metrics-without-trio in prometheus.py: Metrics are served under trio.
~ await outside_loop(lambda: ==> await __import__("asyncio").to_thread(lambda:

= servers/test_no_visit.py
prefetch-counts: A prefetch is no visit.
~ if _AHEAD.search(next(filter(None, ahead), "")): ==> if False:
old-prefetch-counts: A prefetch of an older browser is no visit, over ASGI either.
- or b"purpose" in headers
passive-request-counts: A passive request is no visit.
~ if (request.header("presence") or "").lower() == "passive": ==> if False:
preflight-counts: A CORS preflight is no visit.
~ if request.method == "OPTIONS" and is_cors: ==> if False:
foreign-fetch-counts: What a page of another site fetches is no visit.
~ if request.header("sec-fetch-site") == "cross-site": ==> if False:
foreign-frame-counts: A page in a frame of another site is no visit.
~ if not (is_navigation and request.header("sec-fetch-dest") == "document") ==> if not is_navigation
health-check-with-slash-counts: An excluded path is excluded with a slash at its end, too.
~ return frozenset((*paths, *(f"{path}/" for path in paths))) ==> return frozenset(paths)
pattern-is-one-path: `*` in an excluded path stands for any text.
- if any("*" in path or path.startswith("!") for path in paths):
-         return PathPatterns(paths)
admitted-path-is-excluded: A path with `!` admits what one before it excludes.
~ return match is not None and match.lastindex is None ==> return match is not None
first-path-decides: The last path of PRESENCE_EXCLUDE that matches decides.
~ map(_pattern, reversed(paths)) ==> map(_pattern, paths)
pattern-is-no-special-path:
  Whoever has seen many pages is not counted at a path that a pattern excludes, either.
~ matching_paths(special) if ==> frozenset(special) if
excluded-path-is-not-decoded: A path that is not ASCII can be excluded, over WSGI too.
~ matching_paths(special) if "".join(special).isascii() else None ==> matching_paths(special)

= servers/test_processes.py::test_under_trio_async_readers_refuse_and_a_thread_reads_for_them
refused-departure-happens in middleware/asgi.py:
  Under trio, a departure that is refused does not happen.
- require_asyncio()
= servers/test_processes.py
dead-thread-is-not-replaced: A dead thread is replaced at the next wake.
~ if self.thread is None or not self.thread.is_alive(): ==> if self.thread is None:
clock-of-a-host: Hosts with clocks hours apart report the same.
~ server = seconds_of(reply) ==> server = time.time()
clock-of-the-server-before: After a lost connection, the server is asked for its time again.
~ return is_same_server and self.stamp() - self._asked_at ==> return self.stamp() - self._asked_at
clock-is-trusted-for-ever: The server is asked for its time every ten seconds.
~ return is_same_server and self.stamp() - self._asked_at <= seconds ==> return is_same_server
= servers/test_processes.py::test_a_process_forks_and_ends_without_an_error
hook-of-a-fork-alone-fails: A worker of uWSGI with `--py-call-osafterfork` logs no error.
~ with suppress(RuntimeError):  # uWSGI ==> if True:  # uWSGI
= servers/test_processes.py::test_a_stuck_write_is_logged_once_each_time_and_delays_no_request
stuck-write-fills-the-log: A write that is stuck is logged once.
~ > STUCK_SECONDS + pause and not self._is_stuck: ==> > STUCK_SECONDS + pause:
= servers/test_processes.py::test_nobody_stays_online_through_a_sleep
sleep-brings-them-back: Who was online before a machine slept is not online after it.
~ driver.run(self._clock.synchronise()) ==> pass

= unit/test_addresses.py
all-addresses-of-a-header-are-read: A client causes a bounded number of addresses to be read.
~ items(listed)[-MOST_HOPS:] ==> items(listed)
all-addresses-of-forwarded-are-read: The same of `Forwarded`.
~ if comma < 0 or len(hops) == MOST_HOPS: ==> if comma < 0:
all-commas-are-read: A client causes a bounded number of attempts to read an element.
~ for _ in range(MOST_COMMAS): ==> while True:
empty-hop-is-a-hop: An empty element of Forwarded is no proxy.
~ hops += [] if is_empty else [parse_address(node)] ==> hops.append(parse_address(node))
= unit/test_addresses.py security/test_attacks.py
untrusted-proxy-is-believed: A client cannot choose its address.
~ if hop is None or client not in self: ==> if hop is None:
contradicting-headers-are-believed: Headers that contradict each other change no address.
~ clients.pop() if len(clients) == 1 else peer ==> clients.pop() if clients else peer

= unit/test_asgi.py
message-of-an-extension-is-dropped: All that an ASGI app sends reaches the server.
-         result = await send(message)
+         result = await send(message) if "push" not in message["type"] else None
lost-client-is-hidden-from-the-app: An ASGI app learns that a message could not be sent.
-         result = await send(message)
+         try:
+             result = await send(message)
+         except OSError:
+             result = None
error-of-the-app-is-swallowed: An error of an ASGI app reaches the server.
-         finally:
-             if inner is not scope:
+         except Exception:
+             pass
+         finally:
+             if inner is not scope:
lifespan-is-not-the-apps: The app receives the lifespan of the server.
~ self.app(scope, receive_and_close if is_lifespan else receive, send) ==> receive_and_close()
send-returns-nothing: An ASGI app gets what the send of the server returns.
~ return result ==> return None
client-is-read-once: What can be read only once reaches app and recorder.
~ lists["client"] = list(client) ==> list(client)
invalid-client-breaks-a-request: A server that passes no valid client breaks no request.
~ if isinstance(client, Iterable) and not ==> if client and not
streaming-response-ends-at-once: A streaming response keeps its user online until it ends.
~ message.get("type") in CONTENT and not message.get("more_body") ==> message.get("type") in CONTENT
= unit/test_asgi.py::test_two_recorders_both_count
inner-recorder-is-silent-over-asgi: Two recorders around an ASGI app both count.
~ if outer is not None and outer.recorder is self.recorder ==> if outer is not None

= unit/test_board.py
names-without-token: The board lists last-seen times only with the token.
~ frozenset({"/online", "/last-seen", "/events"}) ==> frozenset({"/online", "/events"})
token-is-guessed-by-time: Tokens are compared in constant time.
~ if hmac.compare_digest(secret, token.encode()): ==> if secret == token.encode():
names-are-cached: No cache stores a response with names.
~ NEVER_STORED = "no-store" ==> NEVER_STORED = "max-age=60"
content-is-sniffed: Responses of the board forbid foreign scripts.
- ("X-Content-Type-Options", "nosniff"),
etag-of-the-time: The ETag of an answer does not depend on the time.
~ (body if unchanging is None else unchanging, digest_size=12) ==> (body, digest_size=12)
= unit/test_board.py::test_a_history_that_has_not_changed_has_the_same_etag
hours-beyond-the-retention: Readers cannot cause reads of more hours than are stored.
- hours = min(_number(query, "hours", DEFAULT_HOURS, 1, 999999), stored)
+ hours = _number(query, "hours", DEFAULT_HOURS, 1, 999999)
= unit/test_board.py::test_the_page_asks_for_no_token_that_lists_nothing
token-for-an-empty-list: A board that can list nobody asks for no token.
~ settings.board_token and listed ==> settings.board_token

= unit/test_bots.py
third-header-is-forgotten-over-wsgi: Each header that rules read distinguishes users, over WSGI.
~ hash((place, *map(environ.get, others))) if others else place ==> place
third-header-is-forgotten-over-asgi: Each header that rules read distinguishes users, over ASGI.
~ hash((place, *map(values.get, others))) if others else place ==> place
list-in-the-encoding-of-the-locale: Apache with its usual locale serves a site.
~ agents.json").read_bytes() ==> agents.json").read_text()
list-is-a-file: A site is imported from a zip file.
~ = reader.files().joinpath( ==> = __import__("pathlib").Path(package.origin).with_name(
crawler-lookups-without-budget: A flood of User-Agents is looked up within a budget.
~ if self._lookups < 0: ==> if False:
crawler-by-its-library: A crawler with two names of the list has the first.
~ text = min(found, key=re.Match.start)[0] ==> text = found[0][0]
crawler-wins-over-a-login: A login wins over a crawler.
~ is_login = name and any(login.find(request) for login in self._logins) ==> is_login = False

= unit/test_command_chart.py::test_bars_are_as_high_as_the_counts_and_gaps_are_marked
chart-begins-too-early: A chart of a terminal shows the time that was asked for.
~ if self.since <= sample.at <= self.until] ==> if True]
newest-is-beyond-the-chart: A sample of this moment is in the last column of a chart.
~ min(width - 1, (sample.at - self.since) // step) ==> (sample.at - self.since) // step
= unit/test_command.py::test_the_command_names_the_missing_package
demo-without-its-extra: The command demo names the extra that it needs.
~ raise SettingsError("needs pip install 'presence_middleware[demo]'") from error ==> raise
= unit/test_command.py
follow-breaks-on-windows: The command follow says that it needs another system than Windows.
~ if not hasattr(os, "pread"): ==> if False:
ctrl-c-breaks-on-windows: On Windows, Ctrl-C ends a command without a traceback.
~ if hasattr(signal, "pthread_sigmask"): ==> if True:
site-files-replace-modules: No file of the working directory replaces a module that is installed.
~ sys.path.append("") ==> sys.path.insert(0, "")
site-functions-are-not-found: A command finds the site's functions in the working directory.
~ sys.path.append("") ==> pass
working-directory-always-counts: No file of the working directory is imported that no setting names.
~ if provider or any(rule.function for rule in settings.identity): ==> if True:
full-disk-is-a-traceback in cli/context.py: A full disk ends a command with a message.
~ if error.errno != errno.ENOSPC: ==> if True:
closed-pipe-is-an-answer in cli/context.py: A pipe that is closed is no answer of a command.
~ except BrokenPipeError: ==> except ChildProcessError:
any-missing-module-is-the-extra: A command without a module of ours does not advise the extra.
~ if error.name not in {"click", "rich", "waitress"}: ==> if False:
closed-output-is-a-traceback in cli/__init__.py: A command runs with a closed standard output.
~ if getattr(sys, name) is None: ==> if False:
command-counts-memory: A command refuses to count a site that is in the memory of another process.
~ if settings.redis_url.scheme == "memory": ==> if False:
command-starts-a-server: A command starts no server.
~ return replace(settings, redis_url=settings.redis_url.joining()) ==> return settings

= unit/test_command_chart.py
chart-begins-before-its-samples: The chart of `presence watch` begins at the first sample.
~ max(self._at - timedelta(hours=self._hours), first) ==> self._at - timedelta(hours=self._hours)
chart-is-longer-than-asked: The chart of `presence watch` is as long as asked at most.
~ max(self._at - timedelta(hours=self._hours), first) ==> first

= unit/test_demo.py
crowd-needs-redis in demo/crowd.py: The crowd of the demo comes although Redis is away.
~ with suppress(PresenceError): ==> if True:
widget-without-a-board: The demo without a board has no widget.
~ if board else "", ==> if True else "",
crowd-in-each-worker: A single worker has the crowd of the demo.
~ self._crowd > 0 and not any(each.has_crowd for each in others) ==> self._crowd > 0
visitors-share-an-address: Each simulated visitor has an address of its own.
~ {number % HOSTS + 1}" ==> {number % 100 + 1}"

= unit/test_django.py
deleted-user-counts: A user who was deleted is no user.
~ user.is_authenticated and user.pk is not None ==> user.is_authenticated
copied-variables-are-reported: A site that copies its environment into its settings is not warned.
~ ignored = [name for name in given if not os.environ.get(name)] ==> ignored = given
settings-of-django-are-silent: A setting in the settings of Django is reported.
~ if ignored and not is_test: ==> if False:
django-account-is-queried: Identifying a loaded account makes no database query.
~ getattr(user, name) if is_property else vars(user).get(name) ==> getattr(user, name, None)
django-session-is-loaded: Django responses do not change, nor do they vary by cookie.
~ if visit.signal is not None or visit.is_logout: ==> if visit:
session-of-the-site-breaks-a-page: A session that is not Django's breaks no page.
- loaded = getattr(_unwrapped(session), "_session_cache", None)
+ loaded = vars(_unwrapped(session)).get("_session_cache")
django-guest: A user of a Django site does not count as a guest on a page that loads no session.
~ if request.may_be_user and ==> if False and
django-guest-with-a-cart-is-lost: A guest counts where a page of Django loads their session.
~ has_id = user if is_loaded else getattr ==> has_id = getattr
django-logs-out-who-is-not-its-user: A logout of Django is not that of the server's user.
~ state[USER] = lambda: None ==> state.pop(USER, None)
django-script-name-is-unknown: The board and rooms of Django are below FORCE_SCRIPT_NAME.
~ state["root_path"] = request.script_name ==> pass
django-logout-is-lost in middleware.py: Whom Django logs out is offline, whoever began the visit.
~ visit.answered(response.status_code) ==> pass
django-stream-ends-early: A streaming response of Django keeps its visit open until it is closed.
~ if response.streaming: ==> if False:
django-stream-is-lost: A response of Django that is dropped unclosed ends its visit.
~ finalize(response, visit.abandon) ==> None
django-stream-fails: A stream of Django that fails ends its visit at once, under ASGI.
~ response.streaming_content = _until_end( ==> _until_end(
django-request-is-kept: A request of Django is freed without the garbage collector.
~ state[USER] = partial(_account_of, _loaded_user(request, visit)) ==> pass
django-tests-are-recorded: The tests of a Django site record nothing.
~ {"enabled": False} if is_test else {} ==> {}
empty-variable-of-a-test-is-set: An empty PRESENCE_ENABLED counts as unset in the tests of a site.
~ not os.environ.get("PRESENCE_ENABLED") ==> "PRESENCE_ENABLED" not in os.environ
= unit/test_django.py contract/test_logins.py
switched-off-site-records: With PRESENCE_ENABLED=0, nothing is recorded.
~ WsgiVisit if settings.enabled else UnrecordedWsgiVisit ==> WsgiVisit

= unit/test_django_templates.py
list-that-is-undefined: An undefined variable stands for no users in a template.
~ if isinstance(users, str) and users: ==> if isinstance(users, str):
no-id-is-the-text-none: An object whose id is None is left out of a list in a template.
~ "" if id is None else normalize_id(str(id)) ==> normalize_id(str(id))
request-of-a-plain-context: A view may pass its request to a template as a variable.
~ "request", None) or context.get("request")) ==> "request", None))
= unit/test_docs.py::test_a_number_of_a_page_is_that_of_the_code
crowds-of-a-rented-network: 2,000 new guests of a /48 count in a window, as the page says.
~ SITE_QUOTA = 2_000 ==> SITE_QUOTA = 20_000
= unit/test_explain.py::test_hints_are_those_of_the_log
cookie-beside-a-user: A cookie that no rule reads is not a mistake if a user was found.
~ if is_asked or kind in self.users: ==> if is_asked:
= unit/test_explain.py
header-without-a-name: A header of `presence explain` has a name.
~ if not colon or not name.strip(): ==> if not colon:
explain-shows-a-value: A reason names keys of a session, and no value.
~ keys = sorted(map(str, found)) ==> keys = sorted(map(str, found.values()))
explain-stops-early: After a login that the response may refuse, `explain` asks the next rules.
~ if found and not found[-1][0].is_checked: ==> if found:
logout-of-nobody-is-not-counted: A logout that finds no user counts, and is explained so.
~ if purpose is Purpose.EXCLUDED_LOGOUT or (user and purpose in LOGOUTS): ==> if purpose in LOGOUTS:
= unit/test_explain.py::test_the_command_asks_neither_app_nor_redis
path-of-bytes-ends-explain: `presence explain` explains a path that is no UTF-8.
~ unquote_to_bytes(path.encode("utf-8", "surrogateescape")) ==> unquote_to_bytes(path)

= unit/test_helpers.py redis/test_templates.py
flask-templates-lack-presence: Flask templates have `presence`.
- @app.context_processor
flask-logout-is-forgotten in flask.py: A request of Flask that logs out takes its user offline.
-         visit.log_out()
flask-logout-is-the-servers: A logout of Flask is that of the user of its session.
~ (NOBODY, self._resolve(), users) ==> (self._login, self._resolve(), users)
flask-logout-behind-a-login-of-a-server: A logout of Flask counts, also if the server names a user.
~ (login.in_app() or ==> (user or
flask-logout-of-another-key: A logout of Flask is noticed whatever key of the session has the user.
~ keys = [rule.argument.partition("@")[0] for rule in of_session] ==> keys: list[str] = []
flask-logout-of-session: A logout of Flask is that of the user whom the rule found in the session.
~ [SESSION], state[USER] = login.before, lambda: session_user ==> [USER] = lambda: session_user
flask-login-keeps-the-request: A request of Flask does not live until the garbage collector runs.
~ state[USER] = lambda: user ==> pass
flask-is-told-to-call-what-it-called: A site with `init_app` is not told to call it.
-     state[USER] = lambda: user
+     if user:
+         state[USER] = lambda: user
+     else:
+         del state[USER]
flask-session-is-accessed: Reading Flask's session adds no `Vary: Cookie`.
~ vars(context)["_session" if "_session" in vars(context) else "session"] ==> context.session
flask-login-refuses-in-vain: A user whom Flask-Login refuses is a guest.
~ REFUSED if is_refused and item(self.session, "_user_id") else id ==> id
flask-login-refuses-users-of-other-keys: Flask-Login refuses only its own users.
~ is_refused and item(self.session, "_user_id") ==> is_refused
falcon-request-is-none: `presence_of` takes a request of Falcon.
~ "environ", "env", "wsgi_environ" ==> "environ", "wsgi_environ"
cherrypy-request-is-none: `presence_of` takes a request of CherryPy.
~ "environ", "env", "wsgi_environ" ==> "environ", "env"
muffin-request-raises: `presence_of` takes a request that shows the keys of its scope as attributes.
~ except (NotImplementedError, KeyError): ==> except NotImplementedError:
microdot-request-is-none: `presence_of` takes a request of Microdot.
~ "wsgi_environ", "asgi_scope", ==> "wsgi_environ",
emmett-request-is-none: `presence_of` takes a request of Emmett.
~ "asgi_scope", "_scope") ==> "asgi_scope")
flask-login-without-a-session-is-lost: A user whom Flask-Login loads from the request counts.
~ vars(self._loaded).get("_login_user") ==> None
session-id-is-a-user: The `id` of a session is no user.
~ "user_id", "username", "user") ==> "user_id", "username", "user", "id")
anonymous-mapping-is-a-user: A mapping in a session that is not authenticated is no user.
~ item(value, "is_authenticated") in (None, True) ==> True
starlette-lacks-the-reader in starlette.py: Templates of Starlette have the reader of their request.
~ return {"presence": template_presence(request)} ==> return {"presence": template_presence(None)}
pyramid-templates-lack-presence: Templates of Pyramid have `presence`.
~ config.add_subscriber(add_presence, BeforeRender) ==> pass
= unit/test_helpers.py::test_a_user_whom_flask_tells_that_a_page_is_missing_is_no_guest
flask-aborts-before-the-user-is-known: Who asks for a page that is missing counts as they are.
~ app.url_value_preprocessors.setdefault(None, []) ==> app.before_request_funcs.setdefault(None, [])
= unit/test_helpers.py::test_what_flask_runs_before_a_request_may_run_after_it
flask-writes-to-a-visit-that-is-over: What Flask runs before a request may run after it.
~ if visit is None or visit.is_over: ==> if visit is None:

= unit/test_identity.py
second-kind-of-users-is-shown: The function of a site hides users of every kind.
~ (who[0] in self.user_kinds or who[0] == self.default_kind) and ==> who[0] == self.default_kind and
user-without-an-identity: A user of Starlette needs no identity, but a name.
~ except (NotImplementedError, KeyError): ==> except KeyError:
blank-is-somebody: A header or cookie of blanks alone is nobody, also where ids are hashed.
~ "" if value.isspace() else hasher(place + value) ==> hasher(place + value)
named-kind-hides-the-users: A kind that is only named leaves the others users.
~ return named | (login_kinds(readers) ==> return named or (login_kinds(readers)
hidden-user-is-found-as-a-user: A user whom a function of the site hides is in no public number.
~ who = self.claimed(who) ==> pass
hidden-user-is-named-as-a-user: A user whom code names is hidden by the function, too.
~ (self.claimed((kind, stored)), BY_LAYER) if stored ==> ((kind, stored), BY_LAYER) if stored
failing-function-shows-all in resolver.py: If the function that hides users fails, all are hidden.
~ return True ==> return False
client-chooses-the-hash-of-a-user: No client can choose a value with the hash of another source.
~ place = f"{rule.source}:{rule.argument}\n" if is_chosen else "" ==> place = ""
key-has-the-hash-of-a-user: No client can choose a key or a token with the hash of a login.
~ rule.type.client_supplied or rule.front_header ==> rule.type.client_supplied or rule.is_credential
json-in-a-cookie-is-cut: A quotation mark within a cookie is a part of it.
~ [ \t]*=([^;]*)" ==> [ \t]*=[ \t]*\"?([^;\"]*)"
text-of-a-layer-is-bytes: Who is named in text by a layer is not decoded once more.
~ return variable(user) if isinstance(user, str) ==> return text(user) if isinstance(user, str)

= unit/test_identity_memory.py
numbers-in-a-token: A token with a number for its user counts, and one with a number for itself.
~ "verify_sub": False, "verify_jti": False, ==> "verify_sub": False,
token-of-an-audience: A token counts whatever its audience is.
~ {"verify_aud": False, ==> {
first-signed-cookie-counts: Of several signed cookies with a name, the last counts.
~ cookie(name, last=True), verify, key, secrets, what= ==> cookie(name), verify, key, secrets, what=
connection-outlives-its-login: A connection counts to its end, also if its token expires meanwhile.
~ return id if until > now - request.age else _EXPIRED ==> return id if until > now else _EXPIRED
expired-login-is-verified-each-second: An open connection has its login verified once a minute.
~ if until <= now and request.age > REMEMBERED_SECONDS: ==> if False:
open-connections-share-their-login: What has expired counts only for a connection from before that.
~ key = place, id(request) ==> key = place, 0
login-that-turns-valid-waits-for-a-connection: A connection that sent it too soon delays no login.
~ until = now + 1  # a host ==> until = now + 1 + request.age  # a host
places-of-the-search-after-a-refusal: The earliest rule of the setting decides who logs out.
~ for place, step in enumerate(self.search.matchers): ==> for place, step in enumerate(unchecked):
curves-without-a-token: A token that is signed with any curve counts.
~ for bits in (256, 384, 512)] ==> for bits in (256, 384)]
= unit/test_identity_memory.py security/test_attacks.py
another-key-makes-known-guests-new: A guest who is counted is refreshed, whatever the key of hashes.
~ if self._is_shared else self.finish(digest) ==> if self.key is None else self.finish(digest)
memory-of-headers-without-bound: A process remembers who is meant by a bounded number of headers.
~ if len(known) >= REMEMBERED: ==> if False:
token-in-a-cookie: Who comes with a token in a cookie is not whoever came before from the address.
~ return "cookie" if self.cookie else "authorization" ==> return "authorization"
identity-is-remembered-too-long: An identity that was found once is looked up again.
~ if now < until <= now + REMEMBERED_SECONDS: ==> if until:
memory-hides-a-login: A login counts although a guest with the same headers is remembered.
~ _first and not (self._asks_user and request.is_anonymous): ==> _first and not self._asks_user:
refused-login-is-remembered: A login that a response refuses is refused, although it is remembered.
~ self._unchecked if is_refused else self.search ==> self.search
ended-request-is-remembered: A request that another thread ended meanwhile is nobody's memory.
~ if request.fingerprint(self._names) == place: ==> if place:
odd-headers-raise: No request raises, whatever a server hands over.
~ except Exception as error:  # the site's code ==> except KeyError as error:  # the site's code
clients-of-a-proxy-share-an-identity: Clients behind the same proxy are not taken for each other.
~ hash((self.peer, self.forwarded, environ.get(first) ==> hash((self.peer, environ.get(first)
session-outlives-itself-in-the-memory: A session that was verified before expires on time.
~ if until < request.holds_until: ==> if False:
address-ends-the-memory: What headers lead to is remembered, also if the last rule is ip.
~ client_address, header="user-agent", absent ==> client_address, absent
another-client-over-asgi-is-the-same: Over ASGI, another client behind a proxy is another visitor.
~ (self.peer, self.forwarded, values.get(first), ==> (self.peer, values.get(first),
another-browser-is-the-same: Another User-Agent is another visitor.
~ self.peer, self.forwarded, environ.get(first), environ.get(second) ==> self.peer, self.forwarded

= unit/test_memory_of_people.py
erasure-that-waits-is-replaced: An erasure that waits is written though a reader leaves.
~ if known.act is ERASED: ==> if known.act is ERASED and known.is_sent:
refused-sighting-is-sent-again: A sighting that was refused stays so after a loss of data.
~ if self.seen == self.sent == taken.seen and self.left.moment is None: ==> if False:
departures-without-bound: While Redis is down, a bounded number of departures wait.
~ len(self._queue) < self._limit and person.departures_due() ==> person.departures_due()
erasure-before-a-logout-is-lost: Whoever asked to be erased is, also if a logout is reported first.
~ if act > known.act or at > known.at: ==> if at > known.at:
late-request-is-lost: A request counts though an older connection was seen just after it.
~ and arrival <= person.arrival and not is_move ==> and not is_move
forgotten-people-are-new: Whoever is beyond the limit of the memory is still known.
~ self._forgotten.add(hash(forgotten)) ==> pass
forgotten-people-are-new-again: Whoever is beyond the limit is known in the next period, too.
~ self._forgotten = self._forgotten, set() ==> self._forgotten = set(), set()
full-memory-knows-nobody: With more people than there is room for, no guest is refused.
~ hash(who) in each or len(each) >= self._limit ==> hash(who) in each
forgotten-people-without-bound: A process remembers a bounded number of hashes of people.
~ if forgotten is not None and len(self._forgotten) < self._limit: ==> if forgotten is not None:
room-entered-during-a-write-is-lost: Whoever enters a room during a write is in it after the next.
~ person.is_moving and each.room is not person.room ==> False
slow-page-pulls-back: A page that took longer than the next does not pull its user back.
~ room.since < known.since or room == known ==> room == known
room-of-a-slow-page-is-lost: A page that took longer than a call without a room moves its user.
~ and arrival <= person.arrival and not is_move: ==> and arrival <= person.arrival:
moment-of-an-earlier-logout: A logout that waits keeps its moment when an earlier one was written.
~ if (person.left.act, person.left.at) == (act, at): ==> if True:
erasure-leaves-somebody-pending: An erasure during a write that fails leaves nobody pending.
~ self.seen, self.sent = max(self.seen, taken.seen), NEVER ==> self.sent = NEVER
waiting-loses-its-room: Whoever waits when data is lost enters their room again.
- self.is_moving = self.room is not None
-         if not has_room or self.seen > self.sent:  # it waits already
-             return False
+ if not has_room or self.seen > self.sent:  # it waits already
+             return False
+         self.is_moving = self.room is not None

= unit/test_notices.py
remedy-for-no-framework: The remedy for a login of no known framework is said as well.
~ for each in used or unread] ==> for each in used]
guests-are-a-mistake: The hint about missing users allows for guests who have not logged in.
~ if some had logged in, PRESENCE_IDENTITY misses them ==> PRESENCE_IDENTITY misses logins
hint-not-where-a-handler-asks: Whoever was counted as a handler asked is among those of a hint.
-                     return who
+                     return None
remedies-without-bound: A process keeps a bounded number of remedies.
~ [key] = mistake, first, visits ==> [str(mistake), ""] = self._seen[key] = mistake, first, visits
remedy-forgets-a-proxy: The remedy for a proxy without a name keeps those that have one.
~ others = f"{self._proxies}, " if self._proxies else "" ==> others = ""
hint-after-a-single-visit: A single visit with a stale cookie is not reported, however long ago.
~ is_shown = visits >= enough.visits and ==> is_shown =
hint-with-other-words-is-another: A mistake that shows with other words each time is one mistake.
-                 key = mistake.hint, mistake.subject
+                 key = mistake.hint, str(mistake)
hint-fails-the-request: A request that the hints cannot read is recorded all the same.
~ Exception as error:  # a part that recording ==> KeyError as error:  # a part that recording
hint-too-early: What visits carry is reported ten seconds after the first.
~ FEW_VISITS, SECONDS = 3, 10.0 ==> FEW_VISITS, SECONDS = 3, 1.0
hint-although-users-are-found: Nothing is reported about logins once a user was found.
~ if is_shown and enough.if_users in (None, has_users): ==> if is_shown:
every-request-is-inspected: Few requests are inspected.
~ self.look_at = max(self.look_at, arrival - most + 1) + 1 ==> self.look_at = arrival
users-who-share-an-id-come-at-once: An id that all have is noticed however fast they come.
~ INSPECTED_USERS if kind in self._hosts else INSPECTED_REQUESTS ==> INSPECTED_REQUESTS
logouts-count-as-visits: A logout that shows no user is no visit of a guest.
-                 yield Mistake(hint, named)
-             return
+                 yield Mistake(hint, named)
session-hides-a-login: A session that no rule reads hides no login cookie.
~ or (self._asks_session and request.session is not None) ==> or request.session is not None
= unit/test_notices.py::test_a_server_that_may_evict_keys_is_reported_once
policy-is-asked-at-each-write: A process asks the server for its eviction policy once.
~ self.has_asked_server = True ==> pass
= unit/test_notices.py::test_each_kind_that_is_full_is_reported
one-full-kind-is-reported: Each kind that is full is reported.
~ kind, self._settings.max_members ==> kind, self._settings.max_members, topic="full"
= unit/test_notices.py::test_a_crowd_of_which_a_process_cannot_hold_all_is_reported_once
crowd-is-dropped-in-silence: A site learns that a process cannot hold all who come at once.
~ self.warn("pending", str(self._settings.max_pending)) ==> pass

= unit/test_paste.py
first-filter-is-blamed: An error names the section of a Paste file with the wrong setting.
~ for each in filters if each.settings == local_conf) ==> for each in filters)
paste-reads-another-section: A filter is found by the name that is given.
~ name in ("", each.name)] ==> True]
site-needs-plaster: A site with a Paste file starts without what reads the file for the command.
~ with suppress(SettingsError): ==> with suppress():

= unit/test_public_surface.py
error-that-no-other-process-reads: An error that a worker of a pool raises reaches its caller.
~ def __init__(self, message: str = _BUSY) ==> def __init__(self, *, message: str = _BUSY)

= unit/test_pulse.py
pulse-of-another-site: Only a page of this site may send a pulse.
~ return site == "same-origin" ==> return site != "cross-site"
form-is-a-signal: A link on another site moves nobody, and keeps nobody online, who submits a form.
~ "form" in type or len(query) ==> len(query)
pulse-loses-the-session: The response of a pulse has the cookies of the app.
~ ("204 No Content", [*EMPTY, *cookies]) ==> ("204 No Content", [*EMPTY])
= unit/test_pulse.py::test_a_generator_of_a_wsgi_app_runs_up_to_its_first_line
pulse-leaves-the-body-open: The body of an app that a pulse runs is closed.
-                 body.close()
+                 pass

= unit/test_replay_command.py::test_replay_asks_the_function_that_hides_users
function-that-hides-reads-no-log: A log is followed with the function that hides users, too.
~ or bool(rule.function)) ==> or ":" in rule.source)
= contract/test_followed_logs.py::test_what_cannot_be_followed_is_refused
field-of-a-user-is-in-a-log: `follow` refuses a rule that reads more of a user than a log has.
~ in SOURCES_IN_A_LOG and not rule.argument ==> in SOURCES_IN_A_LOG
log-shows-who-is-accepted: `follow` refuses a rule that must be checked, which a log does not show.
~ return not rule.checked and (is_in_log ==> return (is_in_log
= unit/test_replay.py::test_fields_are_those_of_requests
url-without-a-path: A line whose target is a URL without a path is of the first page.
~ path = urlsplit(path).path or "/" ==> path = urlsplit(path).path
= unit/test_replay.py::test_every_minute_matches_a_brute_force_count
first-sighting-of-a-minute: Of several sightings in a minute, the last counts in a replay.
~ seen[who] = max(at, seen.get(who, at)) ==> seen[who] = seen.get(who, at)
= unit/test_replay.py
refused-user-of-a-log: The user of a 401 response is ignored.
~ if status == "401": ==> if False:
replayed-window-is-longer: A replayed log is counted as the site would count.
~ next(iter(online.values())) <= now - window ==> next(iter(online.values())) < now - window
year-of-no-clock-in-a-log: A line of a year that no clock has ends no replay.
~ if parsed and 0 <= parsed.at <= MOST_SECONDS ==> if parsed
wrong-clock-in-a-log: A line far ahead of its log is set aside.
~ if line.at > newest + AHEAD: ==> if newest == -math.inf:

= unit/test_rooms.py
mount-point-ends-within-a-segment: A mount point is whole segments of a path.
~ if f"{path}/".startswith(f"{root}/") else path ==> if path.startswith(root) else path
paths-without-bound: A process remembers the rooms of a bounded number of paths.
~ lru_cache(REMEMBERED_PATHS) ==> lru_cache(None)
long-paths-are-remembered: A process remembers the rooms of short paths only.
~ _number_at(path) if len(path) <= MAX_NAME else self._find_number(path) ==> _number_at(path)
navigation-stays-in-the-room: A navigation to a page in no room leaves the room.
~ if number or request.header("sec-fetch-mode") == "navigate": ==> if number:

= unit/test_settings.py
window-of-years-by-minute: A window that no server can count by minutes is refused.
~ if by_minute and settings.window > MOST_BY_MINUTE: ==> if False:
window-of-years-is-refused: A window of sorted sets may last for years.
~ if by_minute and settings.window > MOST_BY_MINUTE: ==> if settings.window > MOST_BY_MINUTE:
comma-missing-in-a-chain: A chain whose rules have no comma between them is refused.
~ and after[2] in SOURCES ==> and not after[2]
template-is-a-path: A path to exclude, or of a logout, with the braces of a room is refused.
~ (?!\s[\s+!]*[/*])[^{}<>] ==> (?!\s[\s+!]*[/*]).
comma-missing-between-paths: Paths without a comma between them are refused.
~ (?!\s[\s+!]*[/*])[^{}<>] ==> [^{}<>]
comma-missing-between-added-paths: Nor are paths with + or ! before them.
~ (?!\s[\s+!]*[/*])[^{}<>] ==> (?!\s+[/*])[^{}<>]
framework-path-is-a-room: A path in the syntax of a framework is refused.
~ (?:(?!:)[^/{}<>*,\s]+| ==> (?:[^/{}*,\s]+|
password-without-a-host-shows: A password shows nowhere, also in a URL that has no host.
~ if "@" in query or not has_hosts: ==> if "@" in query:
missing-secret-is-a-text: A secret that is None is refused, not taken for the text of None.
~ raise ValueError(_SESSION_SECRETS)  # anybody could guess the text of None ==> return str(value)
socket-without-a-path: The URL of a socket has a path.
~ (?P<hosts>)(?P<name>/[^?#]+) ==> (?P<hosts>)(?P<name>[^?#]*)
credential-is-stored: A credential cannot be stored as an id.
~ == "django-session" or header in CREDENTIAL_HEADERS ==> == "django-session"
credential-is-stored-by-another-spelling: Under WSGI, X_Api_Key names the header X-Api-Key.
~ header = self.front_header.replace("_", "-") ==> header = self.front_header
password-in-an-error: No error or log shows the password of the URL.
~ _, at, host = location.rpartition("@") ==> at, host = "", location
option-in-an-error: No error or log shows a password among the options of the URL.
~ hidden = _QUERY_OPTION.sub(r"\1***", query) ==> hidden = query
unknown-option-is-accepted: An invalid option of the URL is refused at start-up.
~ if not (is_tls or _OPTION.fullmatch(f"{name}={value}")): ==> if False:
option-of-tls-without-tls: An option of TLS without TLS is refused at start-up.
~ is_tls = scheme.startswith("rediss") and _TLS_OPTION ==> is_tls = _TLS_OPTION
sentinels-have-any-option: An invalid option of Sentinels is refused at start-up.
~ for options in (address.options, address.sentinel_options): ==> for options in (address.options,):
flush-interval-beyond-the-window: A flush interval over a third of the window is refused.
~ if settings.flush_interval > settings.window / 3: ==> if False:
secret-in-an-error: No error shows a secret of the settings.
~ shown = repr(value) if setting.repr else "***" ==> shown = repr(value)
ini-wins-over-the-environment: The environment overrides an ini file.
~ values = {**ini, **given, **overrides} ==> values = {**given, **ini, **overrides}
short-secret: A secret that is too short is refused.
~ rf"(?!.*{_NO_TEXT})(.{{{MIN_SECRET_LENGTH},}})?", ==> r"(.*)",
secret-that-is-no-text: A secret that is no text is refused with the other invalid settings.
~ rf"(?!.*{_NO_TEXT})( ==> rf"(
session-secret-that-is-no-text: A session secret that is no text is refused, too.
~ |.*(?:{_NO_TEXT}|{_NO_PUBLIC_KEY}) ==> |.*(?:{_NO_PUBLIC_KEY})
public-key-in-lines: The lines of a public key, without those around them, are no secret.
~ r"MI[A-Za-z0-9+/\s\\]{70}| ==> r"MI[A-Za-z0-9+/]{70}|
first-problem-only: All invalid settings are reported together.
~ problems += error.problems ==> problems = error.problems
longest-interval-is-too-long: The longest interval that an error names is accepted.
~ settings.window * 1000 // 3 / 1000 ==> settings.window / 3
secret-of-bytes-is-another: A secret in bytes is refused, for its text would be another.
~ isinstance(value, bytes | None) ==> value is None
none-is-a-prefix: A prefix of None is refused: a site would share its keys with others of that name.
~ isinstance(value, bytes | None) ==> isinstance(value, bytes)
public-key-among-secrets: None of several session secrets is a public key that anybody may know.
~ if any(map(_NO_SECRET, texts)): ==> if any(map(_NO_SECRET, texts[:1])):
= unit/test_settings.py security/test_canary.py
client-ids-are-stored-as-they-are: What a client chose is stored hashed.
~ form == "hashed" or (source.client_supplied and form != "raw") ==> form == "hashed"

= unit/test_svg.py
legend-of-long-kinds-overlaps: The entries of a legend leave each other room.
~ 40 + 7 * max(map(len, keys), default=0) ==> 290
spells-without-their-highest: Of each spell of small numbers, a chart shows the highest.
~ max(group, key=itemgetter(1)) ==> max(group)
label-beyond-the-edge: The label of a peak at an edge is in the picture.
~ anchor = "end" if x > right - 60 else "start" if x < left + 60 else "middle" ==> anchor = "middle"
markup-in-a-chart: A kind is drawn as text.
- return escape(f"{line.kind}: {line.peak[1]:,} at most, {moment:%d %b %Y %H:%M}")
+ return f"{line.kind}: {line.peak[1]:,} at most, {moment:%d %b %Y %H:%M}"

= unit/test_verdict.py
redirect-accepts-login: A checked login counts only where the response accepts it.
~ is_checked and answer is not Answer.ACCEPTED ==> is_checked and answer is Answer.REFUSED
= unit/test_verdict.py contract/test_logins.py
claim-logs-out: Whoever only claims a login does not end it: not by a redirect, nor by OPTIONS.
~ (left := shown(before, answer)): ==> (left := before[0]):
failed-logout-logs-out: A logout that fails takes nobody offline.
~ (Answer.ACCEPTED, Answer.REDIRECTED) ==> {Answer.ACCEPTED, Answer.REDIRECTED, Answer.FAILED}

= unit/test_wrong_questions.py
url-is-taken-for-a-client: A URL in place of a client is refused with the remedy.
~ if not hasattr(client, "execute_command"): ==> if False:
nodes-are-asked-in-no-loop: A client for coroutines of a Cluster is refused where it is passed.
~ if is_async and url.is_cluster: ==> if False:
loop-is-asked-in-no-loop in presence.py: Presence refuses the client of an AsyncPresence, too.
~ require_sync(self.backend.driver) ==> pass
url-is-taken-for-settings: A URL in place of settings is refused with the remedy.
~ if not isinstance(settings, Settings): ==> if False:
text-is-taken-for-an-environment: A URL in place of an environment is refused with the remedy.
~ if not isinstance(environ, Mapping): ==> if False:
time-is-taken-for-a-clock: A clock that cannot be read is refused when the app is wrapped.
~ if clock is not None and not ( ==> if False and not (
wrapper-is-taken-for-its-recorder: A wrapper in place of its recorder is refused with the remedy.
~ if not isinstance(recorder, Recorder | None): ==> if False:
user-object-is-its-text: A user object in place of an id is refused.
~ (str(id) if is_number else as_id(id)) or "" ==> str(id)
text-is-taken-for-ids: A text is no list of ids.
~ isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable): ==> not isinstance(ids, Iterable):
refused-question-keeps-its-request: A question that fails keeps no request.
~ attempt.answer = attempt.failure = None ==> attempt.answer = None
unanswered-question-keeps-its-request: A question that meets an outage keeps no request.
~ del failure ==> pass

= unit/test_wsgi.py
body-stays-open: The body of a WSGI app is closed once.
~ self._body.close() ==> pass
body-loses-its-length: A body with a length keeps it.
~ (SizedBody if hasattr(body, "__len__") else Body)(body, visit) ==> Body(body, visit)
= unit/test_wsgi.py::test_a_body_that_cannot_be_examined_ends_the_visit
visit-of-an-odd-body-stays-open: A body that cannot be examined ends its visit.
-             if not isinstance(body, WHOLE) and not _is_file(body, environ):
-                 return (SizedBody if hasattr(body, "__len__") else Body)(body, visit)
-             visit.end()
-         except BaseException:
-             visit.end()
-             raise
+         except BaseException:
+             visit.end()
+             raise
+         if not isinstance(body, WHOLE) and not _is_file(body, environ):
+             return (SizedBody if hasattr(body, "__len__") else Body)(body, visit)
+         visit.end()
= unit/test_wsgi.py::test_two_recorders_both_count
inner-recorder-is-silent-over-wsgi: Two recorders around a WSGI app both count.
~ if outer.recorder is self.recorder and not outer.is_over: ==> if not outer.is_over:
= unit/test_wsgi.py::test_whole_bodies_go_back_as_they_are
bytes-are-a-sequence-of-numbers: A body of bytes goes back as it is.
~ WHOLE = (list, tuple, bytes) ==> WHOLE = (list, tuple)
"""


class Outdated(Exception):
    """A break cannot be applied, because its text is not there, or not only once."""


class Break(NamedTuple):
    """A change of one place in the package."""

    name: str
    file: str
    """Below `presence_middleware`; empty where `old` occurs in one file alone."""
    promise: str
    old: str
    new: str
    paths: list[str]
    """The tests below the project."""

    def apply(self) -> tuple[Path, str]:
        """Return the file that changes, relative to the project, and its text with the change.

        Raises `Outdated`.
        """
        texts = {file: text for file, text in package_texts().items() if self.file in str(file)}
        found = {file: text.count(self.old) for file, text in texts.items() if self.old in text}
        if sum(found.values()) != 1:
            where = ", ".join(f"{file.relative_to(PACKAGE)} {n} times" for file, n in found.items())
            raise Outdated(f"{self.name}: {self.old!r} occurs not once: {where or 'nowhere'}")
        (file,) = found
        return file.relative_to(ROOT), texts[file].replace(self.old, self.new)


@cache
def package_texts() -> dict[Path, str]:
    """Return the texts of the package that a break may change, by file."""
    kinds = "py", "lua", "js", "css"
    files = [file for kind in kinds for file in PACKAGE.rglob(f"*.{kind}")]
    return {file: file.read_text("utf-8") for file in files}


_WITHIN_A_LINE = re.compile("^~ (.+) ==> (.+)$", re.MULTILINE)
_BREAK = re.compile(r"([\w-]+)(?: in (.+))?:\s+(.+)\n((?:- .*\n)+)((?:\+ .*\n)*)")


def _breaks() -> list[Break]:
    breaks = []
    for group in _WITHIN_A_LINE.sub(r"- \1\n+ \2", TABLE).split("\n= ")[1:]:
        tests, _, rows = f"{group}\n".partition("\n")
        assert not _BREAK.sub("", rows).strip(), f"not a break: {_BREAK.sub('', rows)}"
        paths = [f"tests/{test}" for test in tests.split()]
        for name, file, promise, *lines in _BREAK.findall(rows):
            old, new = (re.sub("^..", "", text, flags=re.MULTILINE)[:-1] for text in lines)
            breaks.append(Break(name, file, promise, old, new, paths))
    return breaks


BREAKS = _breaks()
