// Package selection is how operators say which mail they mean: by sender,
// recipient, domain, next hop, transport, the reply of the last attempt, age,
// size and queue. The tools parse it, the queue manager evaluates it where the
// queue is, and both speak of it in the same words:
//
//	--sender=ADDRESS       --recipient=ADDRESS    --domain=DOMAIN
//	--nexthop=NEXTHOP      --transport=NAME       --destination=DESTINATION
//	--reply=TEXT           --older=TIME           --younger=TIME
//	--larger=SIZE          --smaller=SIZE         --queue=NAME
//	--tenant=NAME          --campaign=TENANT/NAME
//	--waits-for=DESTINATION  --source=NAME
//	--all-recipients
//
// The same name given several times means any of the values; different names
// must all be fulfilled. Those about recipients (recipient, domain, nexthop,
// transport, destination, reply) must be fulfilled by one and the same recipient, of those
// that have not got the message yet. A message is selected as soon as one
// recipient fulfils them; with --all-recipients, when every one does.
//
// Where mail goes (nexthop, transport, destination) is found out anew, by the tables as they are now. waits-for and
// source are about messages, and mean what the scheduler has them wait for at this moment, as qshape counts them:
// mail that has not been tried yet waits for nothing that it knows.
//
// ADDRESS is an address, @DOMAIN, @.DOMAIN for its subdomains, <> for the null sender, or /REGEXP/. DOMAIN,
// NEXTHOP and DESTINATION are described at [Destination]. TEXT is a part of the reply, in any
// letter case, or /REGEXP/. TIME is as in main.cf (30m, 2h, 1d; seconds without
// a letter), SIZE is octets, or has k, m or g behind it.
//
// The package does no I/O. A Selection may be used concurrently once it has been made.
package selection

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/mail"
)

const (
	// maxValues bounds how many conditions a selection has, and maxValue how many octets one has.
	maxValues = 1000
	maxValue  = 4096
	// maxSource bounds the name of a source.
	maxSource = 64
)

// Queues are the names that --queue knows. The queue manager does not know of corrupt.
var Queues = []string{"incoming", "active", "deferred", "hold", "corrupt"}

// A condition is one word of the grammar.
type condition struct {
	name string
	flag bool // it has no value
	set  func(s *Selection, value string) error
}

var conditions = []condition{
	{"sender", false, func(s *Selection, v string) error { return addText(&s.senders, v, parseAddress) }},
	{"recipient", false, func(s *Selection, v string) error { return addText(&s.recipients, v, parseAddress) }},
	{"domain", false, func(s *Selection, v string) error { return addDestination(&s.domains, v, true) }},
	{"nexthop", false, func(s *Selection, v string) error { return addDestination(&s.nexthops, v, false) }},
	{"transport", false, func(s *Selection, v string) error { s.transports = append(s.transports, v); return nil }},
	{"destination", false, func(s *Selection, v string) error { return addDestination(&s.destinations, v, false) }},
	{"reply", false, func(s *Selection, v string) error { return addText(&s.replies, v, parseReply) }},
	{"older", false, func(s *Selection, v string) error { return setTime(&s.older, v) }},
	{"younger", false, func(s *Selection, v string) error { return setTime(&s.younger, v) }},
	{"larger", false, func(s *Selection, v string) error { return setSize(&s.larger, v) }},
	{"smaller", false, func(s *Selection, v string) error { return setSize(&s.smaller, v) }},
	{"queue", false, func(s *Selection, v string) error {
		if !slices.Contains(Queues, v) {
			return fmt.Errorf("there is no queue %q; the queues are %s", v, strings.Join(Queues, ", "))
		}
		s.queues = append(s.queues, v)
		return nil
	}},
	{"tenant", false, func(s *Selection, v string) error { return addGroup(&s.tenants, v, parseTenant) }},
	{"campaign", false, func(s *Selection, v string) error { return addGroup(&s.campaigns, v, parseCampaign) }},
	{"waits-for", false, func(s *Selection, v string) error { return addDestination(&s.waits, v, false) }},
	{"source", false, func(s *Selection, v string) error { return addGroup(&s.sources, v, parseSource) }},
	{"all-recipients", true, func(s *Selection, _ string) error { s.every = true; return nil }},
}

// Names are the words of the grammar, without dashes, in the order of the documents.
func Names() []string {
	var names []string
	for i := range conditions {
		names = append(names, conditions[i].name)
	}
	return names
}

// Known says whether name is a word of the grammar, and whether it has a value.
func Known(name string) (known, value bool) {
	i := slices.IndexFunc(conditions, func(c condition) bool { return c.name == name })
	return i >= 0, i >= 0 && !conditions[i].flag
}

// A Selection says which mail is meant. The zero value means all mail.
type Selection struct {
	at         time.Time // ages count from here; what came later is not meant; zero: no such bound
	args       []string  // as it was made, for the way to the queue manager
	senders    []matcher
	tenants    []string
	campaigns  []string // TENANT/NAME
	waits      []Destination
	sources    []string
	recipients []matcher
	domains    []Destination
	nexthops   []Destination
	transports []string
	// destinations are next hops or domains, as a suspension has them.
	destinations []Destination
	replies      []matcher
	older        time.Duration // 0: no such condition
	younger      time.Duration
	larger       int64 // -1: no such condition
	smaller      int64
	queues       []string
	every        bool
}

// A matcher says whether a text is meant. in says whether one can be that is an address in a domain: what follows its last @ in
// lower case, the whole address if it has none, "@" if nothing follows. nil: any can be.
type matcher struct {
	means func(text string) bool
	in    func(domain string) bool
	whole bool // all addresses in the domains of in are meant
}

// New makes a selection of all mail that was queued at now or before; with the zero time, of all mail.
func New(now time.Time) *Selection {
	return &Selection{at: now, larger: -1, smaller: -1}
}

// Set adds a condition. Errors are for the operator.
func (s *Selection) Set(name, value string) error {
	i := slices.IndexFunc(conditions, func(c condition) bool { return c.name == name })
	switch {
	case i < 0:
		return fmt.Errorf("unknown condition %q", name)
	case len(s.args) >= maxValues:
		return fmt.Errorf("more than %d conditions", maxValues)
	case len(value) > maxValue:
		return fmt.Errorf("--%s: the value is longer than %d octets", name, maxValue)
	case value == "" && !conditions[i].flag:
		return fmt.Errorf("--%s: the value is empty", name)
	}
	if err := conditions[i].set(s, value); err != nil {
		return fmt.Errorf("--%s: %w", name, err)
	}
	s.args = append(s.args, name+"="+value)
	return nil
}

// Empty says that there is no condition: all mail is meant.
func (s *Selection) Empty() bool {
	return !slices.ContainsFunc(s.args, func(a string) bool {
		name, _, _ := strings.Cut(a, "=")
		_, value := Known(name)
		return value
	})
}

// Encode is the selection as it goes over the wire, for [Decode].
func (s *Selection) Encode() []string {
	return append([]string{strconv.FormatInt(s.at.UnixMicro(), 10)}, s.args...)
}

// Decode reads what Encode has made.
func Decode(list []string) (*Selection, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("a selection without a time")
	}
	at, err := strconv.ParseInt(list[0], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("a selection's time: %w", err)
	}
	s := New(time.UnixMicro(at))
	for _, a := range list[1:] {
		name, value, _ := strings.Cut(a, "=")
		if err := s.Set(name, value); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// A Message is what conditions on messages look at.
type Message struct {
	Queue   string
	Created time.Time
	Size    int64
}

// Message says whether queue, age and size are those that are meant.
func (s *Selection) Message(m *Message) bool {
	return s.Aged(m.Created) && (len(s.queues) == 0 || slices.Contains(s.queues, m.Queue)) &&
		(s.larger < 0 || m.Size > s.larger) && (s.smaller < 0 || m.Size < s.smaller)
}

// Queue says whether mail in the queue can be meant.
func (s *Selection) Queue(name string) bool {
	return len(s.queues) == 0 || slices.Contains(s.queues, name)
}

// NamesQueue says whether the queue was asked for by name.
func (s *Selection) NamesQueue(name string) bool { return slices.Contains(s.queues, name) }

// NamesOneQueue says whether one queue was asked for by name, and no other.
func (s *Selection) NamesOneQueue() bool {
	return len(s.queues) > 0 && !slices.ContainsFunc(s.queues, func(q string) bool { return q != s.queues[0] })
}

// Corrupt is the selection of what has been set aside as corrupt, and OnlyCorrupt says that s is that and has no other condition.
func Corrupt() *Selection {
	return &Selection{queues: []string{"corrupt"}, args: []string{"queue=corrupt"}}
}

// OnlyCorrupt: see Corrupt.
func (s *Selection) OnlyCorrupt() bool {
	words := s.Encode()
	return len(words) == 2 && slices.Equal(s.queues, []string{"corrupt"}) // the first word is a time
}

// NeedsEnvelope says that sender or recipients must be known to tell.
func (s *Selection) NeedsEnvelope() bool {
	return len(s.senders)+len(s.tenants)+len(s.campaigns) > 0 || s.NeedsRecipients()
}

// NeedsRecipients says that Recipients must be asked.
func (s *Selection) NeedsRecipients() bool {
	return len(s.recipients)+len(s.domains)+len(s.replies) > 0 || s.NeedsRoute()
}

// NeedsRoute says that Transport and Nexthop of recipients must be known.
func (s *Selection) NeedsRoute() bool {
	return len(s.nexthops)+len(s.transports)+len(s.destinations) > 0
}

// NeedsScheduler says that it must be known what messages wait for.
func (s *Selection) NeedsScheduler() bool { return len(s.waits)+len(s.sources) > 0 }

// NeedsManager says that only a running queue manager can tell: where mail goes, or what it waits for.
func (s *Selection) NeedsManager() bool { return s.NeedsRoute() || s.NeedsScheduler() }

// Waits says whether mail is meant that waits for a next hop by a transport, from a source. What it does not wait for is empty.
func (s *Selection) Waits(transport, nexthop, source string) bool {
	return (len(s.waits) == 0 || transport != "" && slices.ContainsFunc(s.waits, func(d Destination) bool { return d.Match(transport, nexthop, "") })) &&
		(len(s.sources) == 0 || slices.Contains(s.sources, source))
}

// Sender says whether mail from addr is meant. The null sender is "".
func (s *Selection) Sender(addr string) bool { return anyOf(s.senders, addr) }

// Group says whether mail of a tenant and of a campaign of it is meant. Mail of none has "".
func (s *Selection) Group(tenant, campaign string) bool {
	return (len(s.tenants) == 0 || slices.Contains(s.tenants, tenant)) &&
		(len(s.campaigns) == 0 || slices.Contains(s.campaigns, tenant+"/"+campaign))
}

// Domain says whether mail for a recipient in the domain can be meant.
func (s *Selection) Domain(domain string) bool {
	return len(s.domains) == 0 || slices.ContainsFunc(s.domains, func(d Destination) bool { return d.Match("", "", domain) })
}

// OfTenant says whether mail of a tenant can be meant, by its name; "": of none.
func (s *Selection) OfTenant(name string) bool {
	return (len(s.tenants) == 0 || slices.Contains(s.tenants, name)) &&
		(len(s.campaigns) == 0 || slices.ContainsFunc(s.campaigns, func(c string) bool { return strings.HasPrefix(c, name+"/") }))
}

// OfCampaign says whether mail of a campaign can be meant, TENANT/NAME; "": of none.
func (s *Selection) OfCampaign(name string) bool {
	return len(s.campaigns) == 0 || slices.Contains(s.campaigns, name)
}

// NamesTenants says that only mail of tenants that are named, or of campaigns of theirs, is meant.
func (s *Selection) NamesTenants() bool { return len(s.tenants)+len(s.campaigns) > 0 }

// SenderIn says whether mail from a sender in the domain can be meant. The domain is as [Selection.RecipientIn] has it; the null sender's is "".
func (s *Selection) SenderIn(domain string) bool { return anyIn(s.senders, domain) }

// RecipientIn is Domain with the conditions on recipients' addresses as well. The domain is what follows the last @ of the address in
// lower case, the whole address if it has none, and "@" if nothing follows. What an address was before aliases is not asked: see ByOriginal.
func (s *Selection) RecipientIn(domain string) bool {
	return s.Domain(domain) && anyIn(s.recipients, domain)
}

// ByOriginal says whether a recipient can be meant by an address that it had before aliases.
func (s *Selection) ByOriginal() bool { return len(s.recipients) > 0 }

// Narrow says that the domains of senders or recipients tell of most mail whether it can be meant.
func (s *Selection) Narrow() bool {
	return len(s.domains) > 0 || narrows(s.senders) || narrows(s.recipients)
}

// Told says that whether mail is meant is nearly always told by domains, tenants and what is known of the message itself; else many
// messages must be read to find few.
func (s *Selection) Told() bool {
	return len(s.recipients)+len(s.replies) == 0 && !s.NeedsRoute() && !slices.ContainsFunc(s.senders, func(m matcher) bool { return !m.whole })
}

// Aged says whether mail that was queued at a time can be meant.
func (s *Selection) Aged(created time.Time) bool {
	age := s.at.Sub(created)
	return (age >= 0 || s.at.IsZero()) && (s.older == 0 || age > s.older) && (s.younger == 0 || age < s.younger)
}

// A Recipient is what conditions on recipients look at.
type Recipient struct {
	Address   string
	Original  string // before aliases; empty: the same
	Transport string // with NeedsRoute
	Nexthop   string // with NeedsRoute
	Reply     string // why the last attempt failed; empty: there was none
}

// Recipients says whether a message with these recipients, all that have not
// got it yet, is meant.
func (s *Selection) Recipients(list []Recipient) bool {
	if !s.NeedsRecipients() {
		return true
	}
	if s.every {
		return len(list) > 0 && !slices.ContainsFunc(list, func(r Recipient) bool { return !s.Recipient(&r) })
	}
	return slices.ContainsFunc(list, func(r Recipient) bool { return s.Recipient(&r) })
}

// Recipient says whether all conditions on recipients are fulfilled by r.
func (s *Selection) Recipient(r *Recipient) bool {
	return (anyOf(s.recipients, r.Address) || r.Original != "" && anyOf(s.recipients, r.Original)) &&
		s.Domain(domainOf(r.Address)) &&
		(len(s.nexthops) == 0 || slices.ContainsFunc(s.nexthops, func(d Destination) bool { return d.Match(r.Transport, r.Nexthop, "") })) &&
		(len(s.transports) == 0 || slices.Contains(s.transports, r.Transport)) &&
		(len(s.destinations) == 0 || slices.ContainsFunc(s.destinations, func(d Destination) bool { return d.Match(r.Transport, r.Nexthop, domainOf(r.Address)) })) &&
		anyOf(s.replies, r.Reply)
}

// anyOf says whether one of the matchers matches, or there is none.
func anyOf(list []matcher, text string) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(m matcher) bool { return m.means(text) })
}

// anyIn says whether one of the matchers can match an address in a domain, or there is none.
func anyIn(list []matcher, domain string) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(m matcher) bool { return m.in == nil || m.in(domain) })
}

// narrows says that the matchers leave domains out.
func narrows(list []matcher) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(m matcher) bool { return m.in == nil })
}

func domainOf(addr string) string { return addr[strings.LastIndexByte(addr, '@')+1:] }

func addText(list *[]matcher, value string, parse func(string) (matcher, error)) error {
	m, err := parse(value)
	if err == nil {
		*list = append(*list, m)
	}
	return err
}

func addGroup(list *[]string, value string, check func(string) error) error {
	err := check(value)
	if err == nil {
		*list = append(*list, value)
	}
	return err
}

func parseSource(value string) error {
	if len(value) > maxSource || strings.ContainsFunc(value, func(r rune) bool { return !validSource(r) }) {
		return fmt.Errorf("%q is not the name of a source", value)
	}
	return nil
}

func parseTenant(value string) error {
	if !mail.GroupName(value) {
		return fmt.Errorf("%q is not the name of a tenant: it has 1 to %d letters, digits and . _ -", value, mail.MaxGroupName)
	}
	return nil
}

func parseCampaign(value string) error {
	if tenant, name, _ := strings.Cut(value, "/"); !mail.GroupName(tenant) || !mail.GroupName(name) {
		return fmt.Errorf("%q is not a campaign: give TENANT/NAME, each 1 to %d letters, digits and . _ -", value, mail.MaxGroupName)
	}
	return nil
}

// parseDomain reads a destination that is recipients' domains.
func parseDomain(value string) (Destination, error) {
	d, err := ParseDestination(value)
	if err == nil && (d.transport != "" || strings.HasPrefix(d.name, "[")) {
		err = fmt.Errorf("%q is not a domain; --nexthop is for next hops", value)
	}
	return d, err
}

func addDestination(list *[]Destination, value string, domain bool) error {
	parse := ParseDestination
	if domain {
		parse = parseDomain
	}
	d, err := parse(value)
	if err == nil {
		*list = append(*list, d)
	}
	return err
}

// pattern is the matcher of /REGEXP/; ok is false for another text.
func pattern(value string) (m matcher, ok bool, err error) {
	if len(value) < 2 || value[0] != '/' || value[len(value)-1] != '/' {
		return m, false, nil
	}
	re, err := regexp.Compile("(?i)" + value[1:len(value)-1])
	if err != nil {
		return m, true, err
	}
	return matcher{means: re.MatchString}, true, nil
}

func parseAddress(value string) (matcher, error) {
	if m, ok, err := pattern(value); ok {
		return m, err
	}
	switch {
	case value == "<>" || strings.EqualFold(value, "mailer-daemon"):
		null := func(text string) bool { return text == "" }
		return matcher{null, null, true}, nil
	case value[0] == '@' && len(value) > 1:
		d := Destination{name: strings.ToLower(value[1:])}
		return matcher{func(text string) bool {
			at := strings.LastIndexByte(text, '@')
			return at >= 0 && d.matchName(text[at+1:])
		}, d.matchName, true}, nil
	}
	value = strings.TrimSuffix(strings.TrimPrefix(value, "<"), ">")
	domain := domainOf(value)
	if domain == "" {
		domain = "@" // an address that ends in it is said to be in this domain
	}
	lower := strings.ToLower(domain)
	return matcher{means: func(text string) bool { return strings.EqualFold(text, value) },
		in: func(in string) bool { return in == lower || strings.EqualFold(in, domain) }}, nil
}

func parseReply(value string) (matcher, error) {
	if m, ok, err := pattern(value); ok {
		return m, err
	}
	value = strings.ToLower(value)
	return matcher{means: func(text string) bool { return strings.Contains(strings.ToLower(text), value) }}, nil
}

// ParseTime reads a time span as in main.cf: 30m, 2h, 1d, 1w, and seconds
// without a letter.
func ParseTime(value string) (time.Duration, error) {
	units := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour}
	unit, digits := time.Second, value
	if n := len(value); n > 0 && units[value[n-1]] != 0 {
		unit, digits = units[value[n-1]], value[:n-1]
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || n == 0 || time.Duration(n) > 100*365*24*time.Hour/unit {
		return 0, fmt.Errorf("%q is not a time such as 30m, 2h or 1d", value)
	}
	return time.Duration(n) * unit, nil
}

func setTime(d *time.Duration, value string) (err error) {
	if *d != 0 {
		return fmt.Errorf("given twice")
	}
	*d, err = ParseTime(value)
	return err
}

func setSize(p *int64, value string) error {
	if *p >= 0 {
		return fmt.Errorf("given twice")
	}
	shift, digits := 0, value
	if n := len(value); n > 0 {
		if i := strings.IndexByte("kmg", value[n-1]|0x20); i >= 0 {
			shift, digits = 10*(i+1), value[:n-1]
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || n > 1<<62>>shift {
		return fmt.Errorf("%q is not a size such as 500k or 20m", value)
	}
	*p = int64(n << shift)
	return nil
}
