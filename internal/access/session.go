// What restrictions know of a session. The server fills it in, and empties it with
// ResetMail and ResetHelo.

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
	"posthaste/internal/table"
)

// NameStatus is the result of looking up a client's name.
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

// TLS is what is known of an encrypted session. It does not change.
type TLS struct {
	State       tls.ConnectionState
	Protocol    string // TLSv1.3
	Cipher      string // as OpenSSL calls it
	Bits        int    // of the cipher's key
	Trusted     bool   // the client's certificate leads to one of our CAs
	Fingerprint string // of the certificate, AB:CD:...; empty: the client has shown none
	PubKeyPrint string // of its key
	Subject     string // CommonName, as the certificate has it
	Issuer      string
}

// Effects are what access table actions ask for besides a refusal. They are for the
// message; the zero value asks for nothing.
type Effects struct {
	Hold     bool     // into the hold queue
	Discard  bool     // thrown away: the client hears yes to everything
	Filter   string   // transport:destination in place of content_filter; the last one counts
	Redirect string   // the address that gets it instead of all recipients; the last one counts
	BCC      []string // addresses that get it as well
	Pool     string   // the egress pool that it is sent from; the last one counts
	Prepend  []string // header fields, without line ends
}

// A Session is what one client has told so far. The server that owns it sets
// the exported fields; nothing here may be used concurrently.
type Session struct {
	Client
	// Stage is the command under way, as log lines have it: CONNECT, RCPT, ... Empty:
	// there is no session yet.
	Stage string
	Proto string // SMTP, as long as no EHLO has been accepted, or ESMTP
	Helo  string // as the client says, made harmless; empty: it has not said any
	SASL  mail.SASL
	TLS   *TLS // nil in the clear
	// Pipelined says that the client sent commands before it should have.
	Pipelined bool
	// Instance tells transactions apart for policy services. It is made when the first
	// of them is asked.
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
	NoUnknownRcptChecks bool   // receive_override_options
	EtrnDomain          string // only while ETRN is judged

	Effects Effects

	// Answers are what databases have said in the transaction of the tables that cleanup will look
	// at too. They are used when it is judged whether an address exists, and in no other restriction:
	// an access table may count how often it is asked. Only lookups with a context that has them do.
	Answers table.Answers

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

// resolvedAddr is one of them: an address as it was asked for, and where its mail
// goes.
type resolvedAddr struct {
	addr   string
	answer proto.ResolveReply
}

// flagText says for a trace what trivial-rewrite has found out about an address, in
// Postfix's words.
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

// flagNumber is the number that Postfix has for both: a trace has it too.
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

// classOf is the class of the address's domain, in Postfix's words.
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

// ResetMail forgets the transaction: the client, HELO, and who has authenticated
// stay.
func (s *Session) ResetMail() {
	s.QueueID, s.HasSender, s.Sender, s.HasRcpt, s.Recipient = "", false, "", false, ""
	s.Accepted, s.Size, s.SMTPUTF8 = 0, 0, false
	s.Effects = Effects{}
	s.Instance = ""
	s.resolved = reuse.Truncated(s.resolved)
	s.Answers.Forget()
	s.deferPermit, s.found.mail = nil, nil
}

// ResetHelo forgets what HELO told, and that it was EHLO.
func (s *Session) ResetHelo() {
	s.Proto, s.Helo = "SMTP", ""
	s.found.helo = nil
}

// beforeMail is the refusal that waits when a transaction begins. HELO may be left
// out.
func (s *Session) beforeMail() *reason { return cmp.Or(s.found.helo, s.found.connect) }

// A reason is a refusal that is not pronounced yet.
type reason struct {
	reply *smtpwire.Reply
	hard  bool // software, resource or data: our own fault, which warn_if_reject does not excuse
}
