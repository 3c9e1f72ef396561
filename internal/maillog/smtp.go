package maillog

// The events of the SMTP and LMTP client, besides Delivery and ConnectFailed. Those of TLS are in
// smtptls.go.

// join appends its parts to b.
func join(b []byte, parts ...string) []byte {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// SMTPPutOff says that a server will not do for some recipients of a message, for now: another
// server is tried.
type SMTPPutOff struct {
	ID     string
	Reason string // host mx.test[192.0.2.1] said: 450 4.2.0 try later (in reply to RCPT TO command)
}

// Append implements Event.
func (e SMTPPutOff) Append(b []byte) []byte { return append(appendID(b, e.ID), e.Reason...) }

// AppendFields implements Fielder.
func (e SMTPPutOff) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "put off"), "queue_id", e.ID), "reason", e.Reason)
}

// SMTPProblem says that something of this system's own is in the way of a message: the queue file
// or a table that cannot be read. It is logged with LogWarning.
type SMTPProblem struct{ ID, Reason string }

// Append implements Event.
func (e SMTPProblem) Append(b []byte) []byte { return append(appendID(b, e.ID), e.Reason...) }

// AppendFields implements Fielder.
func (e SMTPProblem) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "local problem"), "queue_id", e.ID), "reason", e.Reason)
}

// SMTPNoToken says that there is no token to log in with. It is logged with LogWarning.
type SMTPNoToken struct{ ID, Username, Reason string }

// Append implements Event.
func (e SMTPNoToken) Append(b []byte) []byte {
	return join(appendID(b, e.ID), "no token for ", e.Username, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e SMTPNoToken) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "no token"), "queue_id", e.ID)
	return appendString(appendString(b, "sasl_username", e.Username), "reason", e.Reason)
}

// SMTPUTF8Alone says that a server offers SMTPUTF8 without 8BITMIME, which RFC 6531 section 3.1
// demands with it.
type SMTPUTF8Alone struct{ Relay string }

// Append implements Event.
func (e SMTPUTF8Alone) Append(b []byte) []byte {
	return join(b, "host ", e.Relay, " offers SMTPUTF8 support, but not 8BITMIME")
}

// AppendFields implements Fielder.
func (e SMTPUTF8Alone) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "smtputf8 without 8bitmime"), "relay", e.Relay)
}

// SMTPWorkarounds says what is done about a PIX firewall before the server.
type SMTPWorkarounds struct{ ID, Workarounds, Relay string }

// Append implements Event.
func (e SMTPWorkarounds) Append(b []byte) []byte {
	return join(appendID(b, e.ID), "enabling PIX workarounds: ", e.Workarounds, " for ", e.Relay)
}

// AppendFields implements Fielder.
func (e SMTPWorkarounds) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "pix workarounds"), "queue_id", e.ID)
	return appendString(appendString(b, "workarounds", e.Workarounds), "relay", e.Relay)
}

// SMTPCheck is what a header or body check of the client (smtp_header_checks) made of a message.
type SMTPCheck struct {
	ID     string
	Action string // strip, info, warning, replace, prepend
	Part   string // header, body
	Line   string // what it has found there
	Text   string // that the table gives besides; may be empty
}

// Append implements Event.
func (e SMTPCheck) Append(b []byte) []byte {
	b = join(appendID(b, e.ID), e.Action, ": ", e.Part, " ", e.Line)
	return appendAttr(b, ": ", e.Text)
}

// AppendFields implements Fielder.
func (e SMTPCheck) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "check"), "queue_id", e.ID)
	b = appendString(appendString(b, "action", e.Action), "part", e.Part)
	return appendString(appendString(b, "line", e.Line), "reason", e.Text)
}

// SMTPNoMXAddress says that none of a domain's MX hosts can be reached. It is logged with
// LogWarning.
type SMTPNoMXAddress struct{ Domain string }

// Append implements Event.
func (e SMTPNoMXAddress) Append(b []byte) []byte {
	return join(b, "no MX host for ", e.Domain, " has a valid address record")
}

// AppendFields implements Fielder.
func (e SMTPNoMXAddress) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "no mx address"), "domain", e.Domain)
}

// SMTPOwnGreeting says that a server greets with this system's name: mail may loop. It is logged
// with LogWarning.
type SMTPOwnGreeting struct {
	Relay    string
	Hostname string // myhostname
}

// Append implements Event.
func (e SMTPOwnGreeting) Append(b []byte) []byte {
	return join(b, "host ", e.Relay, " greeted me with my own hostname ", e.Hostname)
}

// AppendFields implements Fielder.
func (e SMTPOwnGreeting) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "own greeting"), "relay", e.Relay), "hostname", e.Hostname)
}

// SMTPStrayLine is a line of a server that is no part of a reply, while several commands were
// under way. It is logged with LogWarning.
type SMTPStrayLine struct {
	ID    string
	Proto string // ESMTP, LMTP
	Relay string
	Line  string
}

// Append implements Event.
func (e SMTPStrayLine) Append(b []byte) []byte {
	return join(appendID(b, e.ID), "non-", e.Proto, " response from ", e.Relay, ": ", e.Line)
}

// AppendFields implements Fielder.
func (e SMTPStrayLine) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "stray line"), "queue_id", e.ID)
	return appendString(appendString(appendString(b, "proto", e.Proto), "relay", e.Relay), "line", e.Line)
}

// SMTPPipeliningHint is what can be done about a SMTPStrayLine (helpful_warnings). It is logged
// with LogWarning.
type SMTPPipeliningHint struct {
	Addr      string
	Parameter string // smtp_discard_ehlo_keyword_address_maps
}

// Append implements Event.
func (e SMTPPipeliningHint) Append(b []byte) []byte {
	return join(b, "to prevent loss of mail, turn off command pipelining for ", e.Addr, " with the ", e.Parameter, " parameter")
}

// AppendFields implements Fielder.
func (e SMTPPipeliningHint) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "pipelining hint"), "relay_address", e.Addr), "parameter", e.Parameter)
}

// SMTPXForwardRefused says that a server refused what it had offered. It is logged with LogWarning.
type SMTPXForwardRefused struct{ Relay, Reply string }

// Append implements Event.
func (e SMTPXForwardRefused) Append(b []byte) []byte {
	return join(b, "host ", e.Relay, " said: ", e.Reply, " (in reply to XFORWARD command)")
}

// AppendFields implements Fielder.
func (e SMTPXForwardRefused) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "xforward refused"), "relay", e.Relay)
	return appendString(appendString(b, "reply", e.Reply), "in_reply_to", "XFORWARD")
}

// SMTPRelayProblem says that mail would be returned because of a server that main.cf names. It is
// kept, and logged with LogWarning.
type SMTPRelayProblem struct {
	Parameter string // relayhost, or smtp_fallback_relay and the like
	Reason    string
}

// Append implements Event.
func (e SMTPRelayProblem) Append(b []byte) []byte {
	name := "fallback relay"
	if e.Parameter == "relayhost" {
		name = e.Parameter
	}
	return join(b, name, " configuration problem: ", e.Reason)
}

// AppendFields implements Fielder.
func (e SMTPRelayProblem) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "relay problem"), "parameter", e.Parameter), "reason", e.Reason)
}
