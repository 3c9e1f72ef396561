package maillog

import "time"

// serverEvents are those of the SMTP server's warnings, of postscreen and of
// pickup, in every form that they can take.
func serverEvents() []Event {
	client, server := Endpoint{"192.0.2.1", "4711"}, Endpoint{"198.51.100.1", "25"}
	const peer = "unknown[192.0.2.1]"
	events := []Event{
		ScreenConnect{client, server},
		ScreenConnect{Endpoint{"2001:db8::1", "4711"}, Endpoint{"2001:db8::25", "25"}},
		ScreenResult{"PASS NEW", client}, ScreenResult{"PASS OLD", client},
		ScreenResult{"ALLOWLISTED", client}, ScreenResult{"DENYLISTED", client},
		ScreenResult{"ALLOWLIST VETO", client}, ScreenResult{"WHITELIST VETO", client}, ScreenResult{"DISCONNECT", client},
		ScreenTurnedAway{Client: client, Reason: "too many connections"},
		ScreenTurnedAway{Client: client, Reason: "all server ports busy"},
		ScreenTurnedAway{Client: client, Reason: "all screening ports busy", Untested: true},
		ScreenListed{"192.0.2.1", "dnsbl.test", "127.0.0.2"}, ScreenRank{3, client},
		ScreenPregreet{client, 40 * time.Millisecond, "EHLO \"x\"\r\n\xff"},
		ScreenPregreet{client, 12 * time.Second, "\u2028" + string(make([]byte, 200))},
		ScreenHangup{client, 1500 * time.Millisecond},
		ScreenViolation{Test: "BARE NEWLINE", Client: client, After: "CONNECT"},
		ScreenViolation{Test: "COMMAND PIPELINING", Client: client, After: "EHLO", Data: "MAIL FROM:<>\r\n", HasData: true},
		ScreenViolation{Test: "NON-SMTP COMMAND", Client: client, After: "CONNECT", Data: "GET / HTTP/1.1", HasData: true},
		ScreenViolation{Test: "COMMAND COUNT LIMIT", Client: client, After: "NOOP"},
		ScreenViolation{Test: "COMMAND TIME LIMIT", Client: client, After: "CONNECT"},
		ScreenViolation{Test: "COMMAND LENGTH LIMIT", Client: client, After: "EHLO"},
		ScreenReject{Client: client, Reply: "550 5.5.1 Protocol error", From: "s@a.test", To: "x@sink.test", Proto: "ESMTP", Helo: "client.test"},

		NameMismatch{Name: "mx.example.com", Addr: "192.0.2.1"},
		NameMismatch{Name: "mx.example.com", Addr: "192.0.2.1", Reason: "timeout"},
		IllegalAddress{peer, "MAIL", "<a@b"}, NonSMTPCommand{peer, "GET / HTTP/1.1"},
		NoSpace{"mail queue", 1000000}, NoSpace{"spool_content_directory", 1000000},
		MessageTooLarge{"4bXYZ"}, NotQueued{"4bXYZ", "cleanup: connection refused"},
		BDATRefused{QueueID: "4bXYZ", Problem: BDATMalformed, Peer: peer, Line: "BDAT x"},
		BDATRefused{QueueID: "4bXYZ", Problem: BDATNull, Peer: peer},
		BDATRefused{QueueID: "4bXYZ", Problem: BDATTooLarge, Peer: peer},
		BDATRefused{Problem: BDATCutOff, Peer: peer},
		SASLAborted{peer, "LOGIN"}, KeywordsDiscarded{"chunking dsn"}, DNSRecordIgnored{"dead.test. 60 IN A 192.0.2.99"},
		TLSAcceptFailed{peer, "lost connection"},
		CertificateNotTrusted{peer, "x509: certificate signed by unknown authority"},
		TLSAborted{peer, "No client certificate presented"},
		ProxyHeaderFailed{"192.0.2.1", "malformed header"}, FlushRefused{"example.com", "timeout"},
		ProxyVerdict{Accepted: true, Stage: "END-OF-MESSAGE", Reply: "250 2.0.0 Ok", From: "s@a.test", To: "x@sink.test", HasTo: true, Proto: "ESMTP", Helo: "client.test"},
		ProxyVerdict{Stage: "END-OF-MESSAGE", Reply: "554 5.7.1 spam", Proto: "SMTP", Helo: "client.test"},
	}
	const filter = "127.0.0.1:10025"
	return append(events,
		ProxyFailed{filter, ProxyConnect, "", "Connection refused"},
		ProxyFailed{filter, ProxyRejected, "EHLO mx.test", "554 5.7.1 go away"},
		ProxyFailed{filter, ProxyGarbage, "", "hello"},
		ProxyFailed{filter, ProxyUnasked, "", "a reply that was not asked for"},
		ProxyFailed{filter, ProxyLost, "", ""}, ProxyFailed{filter, ProxyTimeout, "", ""},

		PickupFailed{"maildrop/4bXYZ", "not a message: unexpected EOF"},
		PickupSplit{"maildrop/4bXYZ", 70000, 40000},
		PickupRemoved{"4bXYZ", "5.1.2 no recipients"},
		PickupInDoubt{"4bXYZ", false, "write: broken pipe"},
		PickupWithdrawn{"4bXYZ", "maildrop/0006"},
		PickupAgain{"4bXYZ", "maildrop/0006"},
		PickupInDoubt{"4bXYZ", true, "4bXYZ: nobody knows whether it is in the queue"},
	)
}
