package maillog

// The events of the TLS of the SMTP and LMTP client, besides TLSEstablished.

// SMTPTLSOffered says that a server offers TLS that is not used (smtp_tls_note_starttls_offer).
type SMTPTLSOffered struct{ Host string }

// Append implements Event.
func (e SMTPTLSOffered) Append(b []byte) []byte {
	return join(b, "Host offered STARTTLS: [", e.Host, "]")
}

// AppendFields implements Fielder.
func (e SMTPTLSOffered) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "tls offered"), "relay_host", e.Host)
}

// SMTPHandshakeFailed says that a TLS handshake did not work.
type SMTPHandshakeFailed struct {
	Peer   string // HOST[ADDR]:PORT
	Reason string
}

// Append implements Event.
func (e SMTPHandshakeFailed) Append(b []byte) []byte {
	return join(b, "SSL_connect error to ", e.Peer, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e SMTPHandshakeFailed) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "tls failed"), "peer", e.Peer), "reason", e.Reason)
}

// SMTPUnverified says that a server's certificate does not prove who the server is.
type SMTPUnverified struct {
	Peer   string // HOST[ADDR]:PORT
	Reason string
	// Name: a CA vouches for the certificate, which is for another name.
	Name bool
}

// Append implements Event.
func (e SMTPUnverified) Append(b []byte) []byte {
	if e.Name {
		b = append(b, "server "...)
	}
	return join(b, "certificate verification failed for ", e.Peer, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e SMTPUnverified) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "certificate not verified"), "peer", e.Peer), "reason", e.Reason)
}

// SMTPWithoutTLS says that opportunistic TLS does not work with a server, and is left out.
type SMTPWithoutTLS struct{ ID, Host string }

// Append implements Event.
func (e SMTPWithoutTLS) Append(b []byte) []byte {
	return join(appendID(b, e.ID), "TLS with ", e.Host, " failed; trying again without")
}

// AppendFields implements Fielder.
func (e SMTPWithoutTLS) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "without tls"), "queue_id", e.ID), "relay_host", e.Host)
}

// SMTPWrapperHint says what a server of SMTP over TLS needs (helpful_warnings).
type SMTPWrapperHint struct {
	Port    string
	Wrapper string // smtp_tls_wrappermode
	Level   string // smtp_tls_security_level
}

// Append implements Event.
func (e SMTPWrapperHint) Append(b []byte) []byte {
	return join(b, "SMTPS wrappermode (TCP port ", e.Port, `) requires setting "`, e.Wrapper, ` = yes", and "`, e.Level, ` = encrypt" (or stronger)`)
}

// AppendFields implements Fielder.
func (e SMTPWrapperHint) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "wrappermode hint"), "relay_port", e.Port), "parameter", e.Wrapper)
}

// SMTPPolicyProblem says that what TLS a destination needs cannot be found out, or makes no sense:
// mail for it waits. It is logged with LogWarning.
type SMTPPolicyProblem struct {
	ID      string
	Nexthop string // as it is written
	Reason  string
}

// Append implements Event.
func (e SMTPPolicyProblem) Append(b []byte) []byte {
	return join(appendID(b, e.ID), "TLS policy for ", e.Nexthop, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e SMTPPolicyProblem) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "tls policy problem"), "queue_id", e.ID)
	return appendString(appendString(b, "nexthop", e.Nexthop), "reason", e.Reason)
}

// SMTPPolicyMX says that an MX host is not one of those that the MTA-STS policy of a domain admits
// (RFC 8461 section 4.1). It is logged with LogWarning.
type SMTPPolicyMX struct{ ID, Host, Domain string }

// Append implements Event.
func (e SMTPPolicyMX) Append(b []byte) []byte {
	return join(appendID(b, e.ID), "MX host ", e.Host, " does not match the MTA-STS policy of ", e.Domain)
}

// AppendFields implements Fielder.
func (e SMTPPolicyMX) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "mx not in policy"), "queue_id", e.ID)
	return appendString(appendString(b, "relay_host", e.Host), "domain", e.Domain)
}

// SMTPNoDANE says that the settings keep DANE from being used where a policy asks for it. It is
// logged with LogWarning.
type SMTPNoDANE struct {
	Level   string // dane, dane-only
	Nexthop string
	// IgnoresMX: because of ignore_mx_lookup_error; else of smtp_dns_support_level.
	IgnoresMX bool
}

// Append implements Event.
func (e SMTPNoDANE) Append(b []byte) []byte {
	why := " needs smtp_dns_support_level = dnssec"
	if e.IgnoresMX {
		why = " is of no use with ignore_mx_lookup_error = yes"
	}
	return join(b, "TLS policy ", e.Level, " for ", e.Nexthop, why)
}

// AppendFields implements Fielder.
func (e SMTPNoDANE) AppendFields(b []byte) []byte {
	parameter := "smtp_dns_support_level"
	if e.IgnoresMX {
		parameter = "ignore_mx_lookup_error"
	}
	b = appendString(appendEvent(b, "dane disabled"), "tls_level", e.Level)
	return appendString(appendString(b, "nexthop", e.Nexthop), "parameter", parameter)
}

// SMTPNoUsableTLSA says that a server has TLSA records, and none that counts (RFC 7672 section
// 2.2). It is logged with LogWarning.
type SMTPNoUsableTLSA struct{ ID, Host, Port string }

// Append implements Event.
func (e SMTPNoUsableTLSA) Append(b []byte) []byte {
	return join(appendID(b, e.ID), "no usable TLSA records for ", e.Host, ":", e.Port)
}

// AppendFields implements Fielder.
func (e SMTPNoUsableTLSA) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "no usable tlsa"), "queue_id", e.ID)
	return appendString(appendString(b, "relay_host", e.Host), "relay_port", e.Port)
}

// SMTPNoDNSSEC says that no answer of the DNS has been vouched for since the process began, so that
// DANE comes to nothing. An SMTPProbeFailed follows. It is logged with LogWarning.
type SMTPNoDNSSEC struct{}

// Append implements Event.
func (SMTPNoDNSSEC) Append(b []byte) []byte {
	return append(b, "DNSSEC validation may be unavailable"...)
}

// AppendFields implements Fielder.
func (SMTPNoDNSSEC) AppendFields(b []byte) []byte { return appendEvent(b, "no dnssec") }

// SMTPProbeFailed says what came of dnssec_probe. It is logged with LogWarning.
type SMTPProbeFailed struct {
	Probe  string // ns:.
	Reason string // why there was no response; empty: nobody vouches for the one that came
}

// Append implements Event.
func (e SMTPProbeFailed) Append(b []byte) []byte {
	b = join(b, "reason: dnssec_probe '", e.Probe, "' received ")
	if e.Reason == "" {
		return append(b, "a response that is not DNSSEC validated"...)
	}
	return join(b, "no response: ", e.Reason)
}

// AppendFields implements Fielder.
func (e SMTPProbeFailed) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "dnssec probe failed"), "record", e.Probe), "reason", e.Reason)
}

// DMARCReportSent says that a DMARC aggregate report has gone to one of those who want it (RFC 9990).
type DMARCReportSent struct {
	Report string // its identifier
	URI    string // mailto:...
}

// Append implements Event.
func (e DMARCReportSent) Append(b []byte) []byte {
	return join(b, "dmarc report: ", e.Report, " sent to ", e.URI)
}

// AppendFields implements Fielder.
func (e DMARCReportSent) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "dmarc report sent"), "report_id", e.Report), "uri", e.URI)
}

// TLSReportSent says that a TLS report has gone to one of those who want it (RFC 8460 section 3).
type TLSReportSent struct {
	Report string // its identifier
	URI    string // mailto:..., https:...
}

// Append implements Event.
func (e TLSReportSent) Append(b []byte) []byte {
	return join(b, "tlsrpt: report ", e.Report, " sent to ", e.URI)
}

// AppendFields implements Fielder.
func (e TLSReportSent) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "tls report sent"), "report_id", e.Report), "uri", e.URI)
}
