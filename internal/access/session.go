package access

import (
	"cmp"
	"crypto/tls"
	"net/netip"
	"strconv"
	"strings"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
	"posthaste/internal/smtpwire"
)

// NameStatus is what came of looking up a client's name.
type NameStatus uint8

const (
	NameOK       NameStatus = iota + 1 // found, and verified where that is asked for
	NameNotFound                       // there is none
	NameForged                         // the name does not have the client's address
	NameTempFail                       // the name servers did not answer
)

// A Client is who speaks to us. It does not change during a session, but for
// XCLIENT.
type Client struct {
	Name          string // verified by looking it up both ways, or "unknown"
	NameStatus    NameStatus
	ReverseName   string // what the address points at, verified or not; or "unknown"
	ReverseStatus NameStatus
	Addr          netip.Addr // without zone; IPv4 also when it came as a mapped address
	AddrText      string     // Addr as text, or "unknown" after XCLIENT
	Port          string
	LogPort       string // Port, where it is to be part of what names the client (smtpd_client_port_logging)
	ServerAddr    string
	ServerPort    string
}

// NameAddr is the client as texts have it: name[address], or
// name[address]:port.
func (c *Client) NameAddr() string {
	if c.LogPort == "" {
		return c.Name + "[" + c.AddrText + "]"
	}
	return c.Name + "[" + c.AddrText + "]:" + c.LogPort
}

// TLS is what is known of an encrypted session.
type TLS struct {
	State       tls.ConnectionState
	Protocol    string // TLSv1.3
	Cipher      string
	Bits        int
	Trusted     bool // the client's certificate leads to one of our CAs
	Fingerprint string
	PubKeyPrint string
	Subject     string // CommonName
	Issuer      string
}

// Effects are what access table actions ask for besides a refusal.
type Effects struct {
	Hold     bool
	Discard  bool
	Filter   string
	Redirect string
	BCC      []string
	Prepend  []string
}

// A Session is what one client has told so far. The server that owns it sets
// the exported fields; nothing here may be used concurrently.
type Session struct {
	Client
	// Stage is the command under way, as log lines have it: CONNECT, RCPT, ...
	Stage string
	Proto string // SMTP, as long as no EHLO has been accepted, or ESMTP
	Helo  string
	SASL  mail.SASL
	TLS   *TLS
	// Pipelined says that the client sent commands before it should have.
	Pipelined bool
	// Instance tells transactions apart for policy services.
	Instance string

	// The transaction. QueueID is empty before the first recipient is accepted.
	QueueID             mail.QueueID
	HasSender           bool
	Sender              string // internal form
	HasRcpt             bool   // a recipient is being judged
	Recipient           string // internal form
	Accepted            int    // number of recipients accepted
	Size                int64  // as announced, later as counted
	SMTPUTF8            bool
	NoUnknownRcptChecks bool // receive_override_options
	EtrnDomain          string

	Effects Effects

	// deferPermit waits for everything else to say yes. It is kept from list
	// to list, and goes back to what the stages before had found when a stage
	// comes again.
	deferPermit *reason
	found       struct{ connect, helo, mail *reason } // deferPermit after these stages
	deferReject *reason                               // for the lists of the present stage
	rcptChecked bool                                  // the present recipient has been looked for in its tables
	sndrChecked bool
	resolved    []resolvedAddr // answers for this transaction
	run         run            // of the list that is gone through; it is here for its memory
}

// maxResolved bounds the answers of trivial-rewrite that a transaction keeps.
const maxResolved = 16

// resolvedAddr is one of them.
type resolvedAddr struct {
	addr   string
	answer proto.ResolveReply
}

// flagText and classOf say for a trace what trivial-rewrite has found out of an address.
func flagText(f proto.ResolveFlags) string {
	var words []string
	for _, n := range []struct {
		flag proto.ResolveFlags
		name string
	}{{proto.ResolveRouted, "routed"}, {proto.ResolveError, "error"}, {proto.ResolveFail, "fail"}} {
		if f&n.flag != 0 {
			words = append(words, n.name)
		}
	}
	return strings.Join(words, " ")
}

// flagNumber is the number that Postfix has for both.
func flagNumber(f proto.ResolveFlags) string {
	classes := proto.ResolveLocal | proto.ResolveAlias | proto.ResolveMailbox | proto.ResolveRelay | proto.ResolveDefault
	n := int(f&classes) << 8
	for flag, number := range map[proto.ResolveFlags]int{proto.ResolveRouted: 2, proto.ResolveError: 4, proto.ResolveFail: 8} {
		if f&flag != 0 {
			n += number
		}
	}
	return strconv.Itoa(n)
}

func classOf(f proto.ResolveFlags) string {
	switch {
	case f&proto.ResolveLocal != 0:
		return "local"
	case f&proto.ResolveAlias != 0:
		return "alias"
	case f&proto.ResolveMailbox != 0:
		return "virtual"
	case f&proto.ResolveRelay != 0:
		return "relay"
	}
	return "default"
}

// ResetMail forgets the transaction.
func (s *Session) ResetMail() {
	s.QueueID, s.HasSender, s.Sender, s.HasRcpt, s.Recipient = "", false, "", false, ""
	s.Accepted, s.Size, s.SMTPUTF8 = 0, 0, false
	s.Effects = Effects{}
	s.Instance = ""
	s.resolved = reuse.Truncated(s.resolved)
	s.deferPermit, s.found.mail = nil, nil
}

// ResetHelo forgets what HELO told.
func (s *Session) ResetHelo() {
	s.Proto, s.Helo = "SMTP", ""
	s.found.helo = nil
}

// beforeMail is what waits before a transaction begins. HELO may be left out.
func (s *Session) beforeMail() *reason { return cmp.Or(s.found.helo, s.found.connect) }

// A reason is a refusal that is not pronounced yet.
type reason struct {
	reply *smtpwire.Reply
	hard  bool // software, resource or data: our own fault, which warn_if_reject does not excuse
}
