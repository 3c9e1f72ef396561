package simtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/mail"
)

func mailID(id string) mail.QueueID { return mail.QueueID(id) }

// A fate is what became of a letter, as its client knows it.
type fate struct {
	books  *books
	letter *Letter
	rcpts  []string // that were taken
	whole  bool     // all of the content was sent, with its end
	told   bool     // the reply to it came
	code   int
	err    error
}

func (f *fate) answer(code int, err error) {
	f.books.mu.Lock()
	defer f.books.mu.Unlock()
	f.code, f.err = code, err
}

// acknowledged says that the mail system has taken the letter on.
func (f *fate) acknowledged() bool { return f.told && f.code == 250 }

// members are those who are to get the letter.
func (f *fate) members() []string { return expanded(f.rcpts) }

func expanded(rcpts []string) (all []string) {
	for _, r := range rcpts {
		all = append(all, members(r)...)
	}
	return all
}

// A delivery is a message that a next hop has taken.
type delivery struct {
	at      time.Time
	hop     string
	session int
	from    string
	rcpts   []string
	content string
	mood    string
}

// books are what the world outside the mail system knows of its mail.
type books struct {
	site *site

	mu         sync.Mutex
	fates      []*fate
	deliveries []*delivery
	deleted    map[string]bool
	faults     []blow
	remaining  []item
	err        error
	counts     Counts
	errors     []string
	exact      bool               // all settings had spool_exact_doubt
	overfull   bool               // there were too many tokens
	events     bool               // services have told of events
	published  map[string]float64 // what processes have counted, by family and labels
	log        []line             // at the end
	ids        map[string]string  // which letter each queue ID is, at the end
}

func (b *books) sent(l *Letter) *fate {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := &fate{books: b, letter: l}
	b.fates = append(b.fates, f)
	return f
}

func (b *books) arrived(d *delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deliveries = append(b.deliveries, d)
}

// A blow is a fault that has struck.
type blow struct {
	*Fault
	at time.Time
}

func (b *books) struck(f *Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, blow{f, time.Now()})
}

// unsettled is how long what came of a delivery may wait for its record: for spool_commit_delay, and for
// processes that are reloaded or started meanwhile.
const unsettled = 5 * time.Second

// onTheWay is how long the end of a message may have been on its way when its sender was killed.
const onTheWay = time.Second

// unnamed says whether a delivery may have been made again without a word, since spool_exact_doubt is not
// set: its record was lost when the power failed or cleanup died. Or both who knew of it died, the queue
// manager and the agent, before it was recorded.
func (b *books) unnamed(d *delivery) bool {
	known := b.known(d)
	within := func(on string) bool {
		return slices.ContainsFunc(b.faults, func(f blow) bool {
			return f.Kind == kill && f.On == on && !f.at.Before(d.at.Add(-onTheWay)) && f.at.Sub(known) < unsettled
		})
	}
	if b.exact {
		return false
	}
	agent := "smtp"
	if d.hop == maildir {
		agent = "local"
	}
	if within("qmgr") && within(agent) || b.nobodyLeft(d) {
		return true
	}
	return slices.ContainsFunc(b.faults, func(f blow) bool {
		loses := f.Kind == powerCut || f.Kind == kill && f.On == "cleanup" || f.Kind == badSyncs
		return loses && !f.at.Before(d.at) && f.at.Sub(known) < unsettled
	})
}

// known is when an agent can have told of a delivery: it tells of all recipients of an order at once, when it is done with
// the last one, for whom it may try other hosts for long.
func (b *books) known(d *delivery) time.Time {
	known := d.at
	if d.mood == slowly {
		known = known.Add(pause)
	}
	if d.hop == maildir || d.from == "" {
		return known
	}
	for id, all := range b.together(d) {
		if all[d.rcpts[0]] && b.ids[id] == d.token() {
			known = b.orderEnd(d, id, all, known)
		}
	}
	return known
}

// together returns, for each message, the recipients at the destination of a delivery that the log mentions.
func (b *books) together(d *delivery) map[string]map[string]bool {
	domain := d.rcpts[0][strings.Index(d.rcpts[0], "@"):]
	m := map[string]map[string]bool{}
	for _, l := range b.log {
		f := rcptLine.FindStringSubmatch(l.Text)
		if f == nil || l.Process != "postfix/smtp" || !strings.HasSuffix(f[2], domain) {
			continue
		}
		if m[f[1]] == nil {
			m[f[1]] = map[string]bool{}
		}
		m[f[1]][f[2]] = true
	}
	return m
}

// orderEnd is when the order ended with which a message with these recipients, all at one destination, was delivered: when
// the log has spoken of all, or the message is taken up anew.
func (b *books) orderEnd(d *delivery, id string, all map[string]bool, end time.Time) time.Time {
	var rest map[string]bool
	for _, l := range b.log {
		at, _ := time.Parse(time.RFC3339Nano, l.Time)
		if strings.HasPrefix(l.Text, id+": from=") {
			if at.After(d.at) {
				if len(rest) > 0 && at.After(end) {
					end = at
				}
				return end
			}
			rest = maps.Clone(all)
			for _, r := range d.rcpts {
				delete(rest, r)
			}
		}
		if f := rcptLine.FindStringSubmatch(l.Text); f != nil && f[1] == id && all[f[2]] {
			delete(rest, f[2])
			if at.After(end) {
				end = at
			}
		}
	}
	return end
}

// token is the letter that was delivered; empty: another message.
func (d *delivery) token() string {
	if m := subject.FindStringSubmatch(d.content); m != nil {
		return m[1]
	}
	return ""
}

// nobodyLeft says whether the queue manager was killed while the mail system was being stopped: none is started then, to
// which agents could say what has come of a delivery.
func (b *books) nobodyLeft(d *delivery) bool {
	const stopping = 2 * time.Minute
	near := func(kind, on string) bool {
		return slices.ContainsFunc(b.faults, func(f blow) bool {
			return f.Kind == kind && f.On == on && f.at.Sub(d.at).Abs() < stopping
		})
	}
	return near(restart, "") && near(kill, "qmgr")
}

func (b *books) mayBeDeleted(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.deleted == nil {
		b.deleted = map[string]bool{}
	}
	b.deleted[token] = true
}

func (b *books) isDeleted(token string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.deleted[token]
}

// A line is one of the log.
type line struct {
	Time, Process, Text, Simtest string
}

func lines(log string) (list []line) {
	for text := range strings.Lines(log) {
		var l line
		if json.Unmarshal([]byte(text), &l) == nil {
			list = append(list, l)
		}
	}
	return list
}

var messageID = regexp.MustCompile(`^(\w+): message-id=<(letter\d+)@client\.test>`)

// tokens says which letter each queue ID is.
func tokens(log []line) map[string]string {
	m := map[string]string{}
	for _, l := range log {
		if f := messageID.FindStringSubmatch(l.Text); f != nil {
			m[f[1]] = f[2]
		}
	}
	return m
}

func (b *books) tokenOf(id string) string {
	b.site.mu.Lock()
	text := b.site.log.String()
	b.site.mu.Unlock()
	return tokens(lines(text))[id]
}

func (b *books) fail(format string, args ...any) {
	b.errors = append(b.errors, fmt.Sprintf(format, args...))
}

// key is a recipient of a letter.
type key struct{ token, rcpt string }

// check holds all that is known against each other.
func (b *books) check(text string) []string {
	log := lines(text)
	ids := tokens(log)
	b.log, b.ids = log, ids
	why := excuses{doubt: b.doubts(log, ids), late: deferred(log, ids), copies: b.copies(log, ids)}
	got, noticed, again := b.collect()
	b.counts.Letters, b.counts.Deliveries, b.counts.Faults = len(b.fates), len(b.deliveries), len(b.faults)
	if b.err != nil {
		b.fail("the queue cannot be listed: %v", b.err)
	}
	for _, it := range b.remaining {
		b.fail("after all is well %s is still in the queue %s (%s from <%s>)", it.id, it.queue, ids[it.id], it.sender)
	}
	for _, f := range b.fates {
		if f.acknowledged() {
			b.counts.Acknowledged++
			b.settled(f, got, noticed)
		}
		b.unasked(f, got, why.doubt)
		b.repeated(f, got, again, why)
	}
	b.crowded()
	b.reported(log)
	b.counted(log)
	if b.events {
		b.announced(log)
	}
	return b.errors
}

// crowded: no destination has more transactions at a time than its limit. When a queue manager takes
// over from another these may be twice as many: see the package comment.
func (b *books) crowded() {
	limit, tenant := concurrency, 1
	// With pools, the window is that of one source.
	if b.site.pooled() {
		limit *= sources
	}
	if slices.ContainsFunc(b.faults, func(f blow) bool { return f.Kind == reload || f.Kind == badTables || f.Kind == kill && f.On == "qmgr" }) {
		limit, tenant = 2*limit, 2
	}
	if b.site.tenants() && b.site.oddMost > tenant {
		b.fail("there were %d transactions of the tenant odd at a time", b.site.oddMost)
	}
	for _, a := range hopAddrs {
		for domain, n := range b.site.hosts[a].most {
			if n > limit {
				b.fail("%s had %d transactions for %s at a time", a, n, domain)
			}
		}
	}
}

// reported looks for what no run may say.
func (b *books) reported(log []line) {
	for _, l := range log {
		disk := strings.Contains(l.Text, "input/output error") || strings.Contains(l.Text, "no space left")
		if strings.Contains(l.Text, "panic:") || strings.Contains(l.Text, "corrupt") || strings.HasPrefix(l.Text, "fatal:") && !disk {
			b.fail("the log says: %s: %s", l.Process, l.Text)
		}
		if f := returned.FindStringSubmatch(l.Text); f != nil && !deserved.MatchString(f[1]) {
			b.fail("returned without a cause: %s", l.Text)
		}
	}
}

// deferred are the recipients of letters that the log says were to be tried again: lists, which are
// delivered to as a whole then, and those of whom it says that the message may be sent more than once.
func deferred(log []line, ids map[string]string) map[key]bool {
	m := map[key]bool{}
	for _, l := range log {
		f := tryAgain.FindStringSubmatch(l.Text)
		if f != nil && (lists[f[2]] != nil || strings.Contains(l.Text, "message may be sent more than once")) {
			m[key{ids[f[1]], f[2]}] = true
		}
	}
	return m
}

// excuses are why something may happen twice.
type excuses struct {
	doubt  map[string]bool // letters
	late   map[key]bool
	copies map[key]int
}

// copies are how many messages local has made for a member of a list elsewhere and may make again without a word: what it
// told of the list was lost. A copy is a message of its own by then, which is delivered or returned whatever becomes of the
// list, and so is the next one.
func (b *books) copies(log []line, ids map[string]string) map[key]int {
	made := map[string]time.Time{}
	type pair struct{ id, rcpt string }
	seen := map[pair]bool{}
	m := map[key]int{}
	for _, l := range log {
		if f := messageID.FindStringSubmatch(l.Text); f != nil {
			made[f[1]], _ = time.Parse(time.RFC3339Nano, l.Time)
		}
		f := forListed.FindStringSubmatch(l.Text)
		if f == nil || seen[pair{f[1], f[2]}] {
			continue
		}
		seen[pair{f[1], f[2]}] = true
		if b.unnamed(&delivery{at: made[f[1]], hop: maildir}) {
			m[key{ids[f[1]], f[2]}]++
		}
	}
	return m
}

// doubts are the letters of which the log says that something may happen twice.
func (b *books) doubts(log []line, ids map[string]string) map[string]bool {
	m := map[string]bool{}
	ids = maps.Clone(ids)
	for _, l := range log {
		if f := notice.FindStringSubmatch(l.Text); f != nil {
			ids[f[2]] = ids[f[1]]
		}
	}
	for _, l := range log {
		if strings.Contains(l.Text, "in doubt") || strings.Contains(l.Text, ": withdrawn: ") || strings.Contains(l.Text, "delivered again") || strings.Contains(l.Text, "queued twice") || strings.Contains(l.Text, "not known") || strings.Contains(l.Text, "nobody knows") {
			for _, w := range strings.FieldsFunc(l.Text, func(r rune) bool { return strings.ContainsRune(" :,;()", r) }) {
				if t, ok := ids[w]; ok {
					m[t] = true
				}
			}
		}
	}
	return m
}

var (
	notice    = regexp.MustCompile(`^(\w+): sender non-delivery notification: (\w+)$`)
	forListed = regexp.MustCompile(`^(\w+): to=<(\S+)>, orig_to=<\S+>, relay=(?:mx|none)\b`)
	rcptLine  = regexp.MustCompile(`^(\w+): to=<(\S+)>, `)
	tryAgain  = regexp.MustCompile(`^(\w+): to=<(\S+)>, .*, status=deferred `)
	returned  = regexp.MustCompile(`, status=bounced \((.*)`)
	deserved  = regexp.MustCompile(`^unknown user|said: 5\d\d |Disk quota exceeded|^Protocol error`)
	subject   = regexp.MustCompile(`(?m)^Subject: letter (letter\d+)\r$`)
	recipient = regexp.MustCompile(`(?ms)^Final-Recipient: rfc822; *(\S+)\r$.*?^Action: (\w+)\r$`)
)

// collect sorts what has arrived: letters, and notices to their senders, sure of which are those that
// nobody had to send again.
func (b *books) collect() (got map[key][]*delivery, noticed, sure map[key]int) {
	got, noticed, sure = map[key][]*delivery{}, map[key]int{}, map[key]int{}
	for _, d := range b.deliveries {
		m := subject.FindStringSubmatch(d.content)
		switch {
		case m == nil:
			b.fail("something else has arrived at %s for %v:\n%s", d.hop, d.rcpts, d.content)
		case d.from == "":
			b.counts.Notices++
			for _, r := range recipient.FindAllStringSubmatch(d.content, -1) {
				if r[2] == "failed" {
					noticed[key{m[1], r[1]}]++
					if d.mood != loseReply && !b.unnamed(d) {
						sure[key{m[1], r[1]}]++
					}
				}
			}
		default:
			for _, r := range d.rcpts {
				got[key{m[1], r}] = append(got[key{m[1], r}], d)
			}
		}
	}
	return got, noticed, sure
}

// settled: each recipient of what was acknowledged has it, or its sender knows.
func (b *books) settled(f *fate, got map[key][]*delivery, noticed map[key]int) {
	for _, r := range f.members() {
		k := key{f.letter.Token, r}
		if len(got[k]) == 0 && noticed[k] == 0 && !b.deleted[f.letter.Token] && !b.listTold(f, r, noticed) && !b.unknowing(f) {
			b.fail("%s was acknowledged, and <%s> has not got it, nor was its sender told", f.letter.Token, r)
		}
	}
}

// hasExpired says whether there is a message of a letter, or a notice if notice, that was given up because of its age.
func (b *books) hasExpired(token string, notice bool) bool {
	return slices.ContainsFunc(b.log, func(l line) bool {
		id, text, _ := strings.Cut(l.Text, ": ")
		return strings.HasSuffix(text, "status=expired, returned to sender") && (b.ids[id] == token || b.ids[id] == "") &&
			strings.HasPrefix(text, "from=<>") == notice
	})
}

// unknowing says whether a sender need not have been told: a notice has expired. It does so only when the clock leaps while
// the sender's host takes nothing.
func (b *books) unknowing(f *fate) bool {
	return len(b.site.plan.Clock) > 1 && b.hasExpired(f.letter.Token, true)
}

// listTold says whether a recipient is on a list of which the sender was told, by the name of another member, that the
// message has expired: local forwards to nobody while it is to try the list again.
func (b *books) listTold(f *fate, rcpt string, noticed map[key]int) bool {
	return b.hasExpired(f.letter.Token, false) && slices.ContainsFunc(f.rcpts, func(list string) bool {
		all := members(list)
		return slices.Contains(all, rcpt) && slices.ContainsFunc(all, func(m string) bool { return noticed[key{f.letter.Token, m}] > 0 })
	})
}

// unasked: what was not acknowledged goes nowhere, unless that was in doubt; and what arrives is what was sent.
func (b *books) unasked(f *fate, got map[key][]*delivery, doubt map[string]bool) {
	body := f.letter.body()
	for _, r := range expanded(f.letter.Rcpts) {
		for _, d := range got[key{f.letter.Token, r}] {
			if !strings.HasSuffix(d.content, body) {
				b.fail("%s has arrived at %s and is not what was sent:\n%s", f.letter.Token, d.hop, d.content)
			}
			if !slices.Contains(f.members(), r) {
				b.fail("%s has arrived for <%s>, which was not taken", f.letter.Token, r)
			}
		}
		switch {
		case len(got[key{f.letter.Token, r}]) == 0 || f.acknowledged():
		case !f.whole:
			b.fail("%s has arrived for <%s>, although its client had not sent it all", f.letter.Token, r)
		case f.told && !doubt[f.letter.Token]:
			b.fail("%s has arrived for <%s>, although its client was told %d", f.letter.Token, r, f.code)
		}
	}
}

// repeated: nothing happens twice but what was under way when something went wrong, and of which the log says so.
// A list that is tried again is delivered to all accounts on it once more.
func (b *books) repeated(f *fate, got map[key][]*delivery, noticed map[key]int, why excuses) {
	for _, r := range f.members() {
		k := key{f.letter.Token, r}
		list, copies := got[k], why.copies[k]
		if noticed[k] > 1+copies && !why.doubt[k.token] {
			b.fail("the sender of %s was told %d times that <%s> does not get it", k.token, noticed[k], r)
		}
		for i := 0; i < len(list)-1; i++ {
			b.counts.Repeated++
			d := list[i]
			named := why.doubt[k.token] || b.unnamed(d) || why.late[k] || d.hop == maildir && why.late[key{k.token, listOf(r)}]
			switch {
			case d.mood == loseReply || d.mood == twoReplies || named:
			case copies > 0:
				copies--
			default:
				b.fail("<%s> has got %s at %v, and again, and nothing says why", r, k.token, d.at.UTC().Format(time.StampMicro))
			}
		}
	}
}
