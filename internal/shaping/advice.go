// What the files say of a destination, in the words of others: limits as destination_limit_maps has
// them, and advice, a text that goes with a destination through the queue manager to the agent.

package shaping

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/rate"
)

// Limits lays the limits of a destination on those that a table has: what the table says counts. Where its entry
// is the one for all destinations (star), what is said of this one in a file counts more; what the default section
// says does not.
func (s *Settings) Limits(table string, star bool) string {
	return s.overlay(table, star, "connection_limit", "max_connection_rate", "max_message_rate", "max_deliveries_per_connection")
}

// ProviderLimits does the same for the limits of the provider that Limited is.
func (s *Settings) ProviderLimits(table string) string {
	return s.overlay(table, false, "provider_connection_limit", "", "provider_max_message_rate", "")
}

// overlay takes the keys of concurrency, connections, messages and messages_per_connection.
func (s *Settings) overlay(table string, star bool, concurrency, connections, messages, reuse string) string {
	if table == "none" && !star {
		return table
	}
	l, err := rate.ParseLimits(table)
	if table != "" && err != nil {
		return table // who reads the table complains, and bounds what is left
	}
	given := l
	value := func(key string, said bool) (Value, bool) {
		v, ok := s.Values[key]
		return v, ok && (!said || star && !v.Default())
	}
	if v, ok := value(concurrency, l.Concurrency > 0); ok {
		l.Concurrency = int(v.N)
	}
	if v, ok := value(connections, !l.Connections.IsZero()); ok {
		l.Connections = v.Rate
	}
	if v, ok := value(messages, !l.Messages.IsZero()); ok {
		l.Messages = v.Rate
	}
	if v, ok := value(reuse, l.Reuse > 0); ok {
		l.Reuse = int(v.N)
	}
	if l == given {
		return table
	}
	return l.String()
}

// parse reads limits that this program has written; none: there are none.
func parse(limits string) rate.Limits {
	l, err := rate.ParseLimits(limits)
	if limits == "" || err != nil {
		return rate.Limits{}
	}
	return l
}

// Kept are those limits of a table that hold: what Limits has made of it is merged. It is empty if none does.
func Kept(table, merged string) string {
	t, m := parse(table), parse(merged)
	if t.Concurrency != m.Concurrency {
		t.Concurrency = 0
	}
	if t.Connections != m.Connections {
		t.Connections = rate.Rate{}
	}
	if t.Messages != m.Messages {
		t.Messages = rate.Rate{}
	}
	if t.Reuse != m.Reuse {
		t.Reuse = 0
	}
	// No key of a file is about recipients.
	if t.Recipients = (rate.Rate{}); t == (rate.Limits{}) {
		return ""
	}
	return t.String()
}

// SetLimit gives limits, as a table has them, the value that a rule sets for a key of a destination or a provider. What a
// table has said (most, as Kept has it) a rule may make less, and not more. ok is false for a key that is no limit. provider
// says whose limit it is.
func SetLimit(limits, most, key string, v *Value) (text string, provider, ok bool) {
	l, m := parse(limits), parse(most)
	count := func(to *int, most int) {
		if *to = int(v.N); most > 0 {
			*to = min(*to, most)
		}
	}
	spread := func(to *rate.Rate, most rate.Rate) {
		if *to = v.Rate; !v.Rate.Tightens(most) {
			*to = most
		}
	}
	switch key {
	case "connection_limit", "provider_connection_limit":
		count(&l.Concurrency, m.Concurrency)
	case "max_connection_rate":
		spread(&l.Connections, m.Connections)
	case "max_message_rate", "provider_max_message_rate":
		spread(&l.Messages, m.Messages)
	case "max_deliveries_per_connection":
		count(&l.Reuse, m.Reuse)
	default:
		return limits, false, false
	}
	return l.String(), strings.HasPrefix(key, "provider_"), true
}

// IsLimit says whether a key is one of limits, and IsProvider whether of a provider's.
func IsLimit(key string) (limit, provider bool) {
	_, provider, limit = SetLimit("", "", key, new(Value))
	return limit, provider
}

// Advice is what goes with a destination: what its agent is to do otherwise, and where its replies count. The zero
// value is none.
type Advice struct {
	Unit     string   // a site or a domain
	Sections []string // those that have rules of automation
	// What destination_limit_maps has said of the destination, and of its provider, as limits: rules of automation do not
	// raise it.
	Most, ProviderMost string
	Client             Client
}

// A Client is what an agent is to do otherwise than main.cf says. The zero value of each is as main.cf says.
type Client struct {
	Connect, Hello, StartTLS, Mail, Rcpt, DataInit, DataXfer, Rset time.Duration
	Idle                                                           time.Duration // how long a session is kept
	Recipients                                                     int           // of a transaction
	TLS                                                            string        // a value of enable_tls
	DANE                                                           bool
	NoPipelining                                                   bool
	Port                                                           int
	Helo                                                           string
	Families                                                       string         // a value of ip_lookup_strategy
	Skip, Prohibited                                               []netip.Prefix // servers that are not used, and those because of which mail is returned
}

// clientKeys are the keys that agents honour.
var clientKeys = [...]string{"connect_timeout", "banner_timeout", "ehlo_timeout", "mail_from_timeout", "rcpt_to_timeout", "data_timeout",
	"data_dot_timeout", "rset_timeout", "starttls_timeout", "idle_timeout", "max_recipients_per_batch", "enable_tls", "enable_dane",
	"enable_pipelining", "smtp_port", "ehlo_domain", "prohibited_hosts", "skip_hosts", "ip_lookup_strategy"}

// Advice is what goes with the destination, as ParseAdvice reads it. most and providerMost are those of Advice.
func (s *Settings) Advice(unit, most, providerMost string) string {
	q := url.Values{"unit": {unit}}
	if most != "" {
		q.Set("most", most)
	}
	if providerMost != "" {
		q.Set("pmost", providerMost)
	}
	if len(s.Sections) > 0 {
		q["in"] = s.Sections
	}
	for _, k := range clientKeys {
		if v, ok := s.Values[k]; ok {
			q.Set(k, v.Text)
		}
	}
	return q.Encode()
}

// SetAdvice changes one key of an advice.
func SetAdvice(advice, key, text string) string {
	q, err := url.ParseQuery(advice)
	if err != nil {
		return advice
	}
	q.Set(key, text)
	return q.Encode()
}

// ParseAdvice reads an advice. What is not understood in it is left out: another version wrote it.
func ParseAdvice(text string) (a Advice) {
	q, err := url.ParseQuery(text)
	if err != nil {
		return a
	}
	a.Unit, a.Sections, a.Most, a.ProviderMost = q.Get("unit"), q["in"], q.Get("most"), q.Get("pmost")
	for _, k := range clientKeys {
		if !q.Has(k) {
			continue
		}
		if v, err := Set(k, q.Get(k)); err == nil {
			a.Client.set(k, &v)
		}
	}
	return a
}

// set takes in one key.
func (c *Client) set(key string, v *Value) {
	switch key {
	case "connect_timeout":
		c.Connect = v.Time
	case "banner_timeout", "ehlo_timeout": // one time holds for both
		c.Hello = max(c.Hello, v.Time)
	case "mail_from_timeout":
		c.Mail = v.Time
	case "rcpt_to_timeout":
		c.Rcpt = v.Time
	case "data_timeout":
		c.DataInit = v.Time
	case "data_dot_timeout":
		c.DataXfer = v.Time
	case "rset_timeout":
		c.Rset = v.Time
	case "starttls_timeout":
		c.StartTLS = v.Time
	case "idle_timeout":
		c.Idle = v.Time
	case "max_recipients_per_batch":
		c.Recipients = int(v.N)
	case "enable_tls":
		c.TLS = v.Text
	case "enable_dane":
		c.DANE = v.Yes
	case "enable_pipelining":
		c.NoPipelining = !v.Yes
	case "smtp_port":
		c.Port = int(v.N)
	case "ehlo_domain":
		c.Helo = v.Text
	case "prohibited_hosts":
		c.Prohibited = v.Hosts
	case "skip_hosts":
		c.Skip = v.Hosts
	case "ip_lookup_strategy":
		c.Families = v.Text
	}
}

// ProviderName is a provider's name as it may be that of a shared limit: letters, digits, "-", "_" and ".", at most 64.
func ProviderName(name string) string {
	b := []byte(name)
	for i, c := range b {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			b[i] = '-'
		}
	}
	if len(b) > 64 { // the end must not make two of them one
		return string(b[:50]) + "-" + strconv.FormatUint(uint64(hash(name)), 16)
	}
	return string(b)
}

// hash is FNV-1a, of 32 bits.
func hash(text string) uint32 {
	h := uint32(2166136261)
	for i := range len(text) {
		h = (h ^ uint32(text[i])) * 16777619
	}
	return h
}
