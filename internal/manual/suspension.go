package manual

// suspensionSection describes suspend, resume and suspended in posthaste(1).
func suspensionSection() section {
	return section{
		title: "Suspensions",
		about: []string{
			"suspend, resume and suspended are for root and the mail owner, as postsuper(1) is. The mail system must run: the queue manager keeps what is suspended.",
			"A suspension holds from the moment at which the command returns, without a reload, and over reload, stop and crash: nothing that it is for is handed to a delivery agent. Deliveries under way end as they do. What arrives is queued, and waits. To wait is no attempt: it costs no retry, no place in the active queue, and the time to the next attempt does not grow. The age of mail counts, as with any mail that waits: maximal_queue_lifetime, bounce_queue_lifetime and delay_warning_time apply. No flush and no ETRN overrides a suspension. When it ends, by resume or by its time, what has waited is tried in the order of its arrival, within the usual concurrency limits.",
			"mailq shows it as the reason for which a recipient waits, postqueue -j has its target as suspended, explain says who has suspended what and until when, qshape marks the rows, and the log has who, when and why. The metrics posthaste_suspensions and posthaste_suspended_messages count.",
			"The end of a suspension is a time, as --until 2026-11-24T08:00 or 08:00 for the next time it is that late, or so long as --for says: 30m, 2h, 1d. Without one it lasts until it is resumed. A second suspend of the same target takes the place of the first one. A target is one of these:",
		},
		items: []item{
			{"Ar destination", "Recipients in this domain, and mail whose next hop it is; .domain, the same for its subdomains; [host]:port, a next hop; transport:nexthop; transport: for all of a transport's mail; or * for all mail. It may also follow --destination."},
			{"Fl -domain Ns = Ns Ar domain", "Recipients in this domain, or with a dot before it in its subdomains, whatever the next hop is; mail that only goes by way of a host of that name is not meant."},
			{"Fl -nexthop Ns = Ns Ar nexthop", "Mail that goes there, whatever the recipients' domains are."},
			{"Fl -transport Ns = Ns Ar name", "All mail of a transport: the same as name with a colon."},
			{"Fl -sender Ns = Ns Ar address", "Mail from this envelope sender, for whatever destination: an address, @domain, @.domain for its subdomains, <> for the null sender, or /regular expression/."},
			{"Fl -sender-domain Ns = Ns Ar domain", "Mail from senders in this domain: the same as --sender=@domain."},
		},
		example: "posthaste suspend example.com -n\nposthaste suspend example.com --reason 'ticket 4711: they ask for a pause' --for 2h\n" +
			"posthaste suspend --sender=news@example.org --reason 'wrong campaign'\nposthaste suspended\nposthaste queue delete --sender=news@example.org\nposthaste resume --sender=news@example.org",
	}
}
