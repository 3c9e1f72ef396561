package maillog

// localEvents are those of local delivery, besides deliveries.
func localEvents() []Event {
	const forward, list = "/home/joe/.forward", "/etc/posthaste/lists/all"
	return []Event{
		AliasProblem{"staff", AliasEmpty},
		AliasProblem{"staff", AliasUnsafe},
		AliasProblem{"postmaster", AliasMissing},
		ForwardProblem{File: forward, Fault: FileNotRegular},
		ForwardProblem{File: forward, Fault: FileWorldWrite},
		ForwardProblem{File: forward, Fault: FileOwner, UID: 1007},
		ForwardProblem{File: forward, Fault: FileUnreadable, Reason: "too many destinations"},
		IncludeProblem{File: list, Fault: FileUnreadable, Reason: "permission denied"},
		IncludeProblem{File: list, Fault: FileNotRegular},
		IncludeProblem{File: list, Fault: FileWorldWrite},
		IncludeProblem{File: list, Fault: FileNesting},
		IncludeProblem{File: "lists/all", Fault: FileRelative},
		IncludeProblem{File: list, Fault: FileUnknownOwner, UID: 1007},
		IncludeProblem{File: list, Fault: FileUnknownOwner, UID: 1007, Reason: "connection refused"},
		HomeProblem{Text: "~joe/mail", Syntax: true},
		HomeProblem{Text: "~/mail"},
		UserLookupFailed{"joe", "connection refused"},
		AddressProblem{"08A6F9D4443", "joe@a.test", AddressTooMany},
		AddressProblem{"08A6F9D4443", "joe+../x", AddressExtension},
		AddressProblem{"", "joe", AddressNoDomain},
		ForwardFailed{"08A6F9D4443", "451 4.3.0 Error: queue file write error"},
		MaildirDenied{1001, 1001, "mkdir /var/mail/joe/tmp: permission denied"},
		TransportLoop{"mailbox_transport", "local", "joe@a.test"},
	}
}
