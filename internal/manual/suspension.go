package manual

// suspensionSection describes suspend, resume and suspended in posthaste(1).
func suspensionSection() section {
	return section{
		title: "Suspensions",
		about: []string{
			"Like postsuper(1), the commands suspend, resume and suspended are for root and the mail owner. The mail system must be running, because the queue manager keeps the suspensions.",
			"A suspension takes effect when the command returns, without a reload, and survives reload, stop and crash: no mail that it covers is handed to a delivery agent. Deliveries in progress are not interrupted. New mail is queued, and waits. Waiting is not a delivery attempt: it takes no place in the active queue, and the time to the next attempt does not grow. But the mail ages like all waiting mail: maximal_queue_lifetime, bounce_queue_lifetime and delay_warning_time apply. Neither a flush nor ETRN overrides a suspension. When it ends, by resume or at its time, the waiting mail is tried in the order of its arrival, within the usual concurrency limits.",
			"mailq shows the suspension as the reason why a recipient waits, postqueue -j has its target in the field suspended, explain says who has suspended what and until when, qshape marks the rows, and the log has who, when and why. The metrics posthaste_suspensions and posthaste_suspended_messages count suspensions and suspended mail.",
			"A suspension ends at a given time, with --until 2026-11-24T08:00 or --until 08:00 (the next time it is 08:00), or after a given time, with --for 30m, 2h or 1d. Otherwise it lasts until it is resumed. A second suspend of the same target replaces the first. A target is one of these:",
		},
		items: []item{
			{"Ar destination", "A domain: its recipients, and mail whose next hop it is; .domain, the same for its subdomains; [host]:port, a next hop; transport:nexthop; transport: for all of a transport's mail; or * for all mail. It may also follow --destination."},
			{"Fl -domain Ns = Ns Ar domain", "Recipients in this domain, or with a leading dot in its subdomains, whatever the next hop. Mail that only goes through a host of that name is not covered."},
			{"Fl -nexthop Ns = Ns Ar nexthop", "Mail with this next hop, whatever the recipients' domains."},
			{"Fl -transport Ns = Ns Ar name", "All mail of a transport: the same as name with a colon."},
			{"Fl -sender Ns = Ns Ar address", "Mail from this envelope sender, to any destination: an address, @domain, @.domain for its subdomains, <> for the null sender, or /regular expression/."},
			{"Fl -sender-domain Ns = Ns Ar domain", "Mail from senders in this domain: the same as --sender=@domain."},
		},
		example: "posthaste suspend example.com -n\nposthaste suspend example.com --reason 'ticket 4711: they ask for a pause' --for 2h\n" +
			"posthaste suspend --sender=news@example.org --reason 'wrong campaign'\nposthaste suspended\nposthaste queue delete --sender=news@example.org\nposthaste resume --sender=news@example.org",
	}
}
