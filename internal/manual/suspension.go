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
			{"Fl -tenant Ns = Ns Ar name", "Mail of this tenant (tenant_maps), to any destination."},
			{"Fl -campaign Ns = Ns Ar tenant Ns / Ns Ar name", "Mail of this campaign of the tenant."},
			{"Fl -source Ns = Ns Ar name", "What goes from this source of egress_source_maps, wherever to. Such mail goes from other sources of its pool; only when all of them are suspended it waits. How much mail that is cannot be said before, so -n is not accepted."},
		},
		example: "posthaste suspend example.com -n\nposthaste suspend example.com --reason 'ticket 4711: they ask for a pause' --for 2h\n" +
			"posthaste suspend --sender=news@example.org --reason 'wrong campaign'\nposthaste suspended\nposthaste queue delete --sender=news@example.org\nposthaste resume --sender=news@example.org",
	}
}

// limitSection describes limit, unlimit and limited in posthaste(1).
func limitSection() section {
	return section{
		title: "Limits",
		about: []string{
			"Like suspend, the commands limit, unlimit and limited are for root and the mail owner, and the mail system must be running.",
			"A limit bounds the concurrency window of a destination, as destination_concurrency_limit does, without a reload and only for now. It takes effect when the command returns: no delivery begins while as many as the limit are in progress. Deliveries in progress are not interrupted. It survives reload, stop and crash, and ends as a suspension does, by unlimit or at its time. A second limit for the same destination replaces the first. To stop deliveries altogether, use suspend: 0 is not accepted.",
			"A limit below that of main.cf applies at once. One that is not below it would have no effect and is refused, unless --raise is given. The window then still starts at its present size and grows as deliveries succeed. A destination rate delay means one delivery at a time, whatever limit is set, and the process limit in master.cf and thread_agents still apply.",
			"The destination is a next hop: a domain means mail that is delivered by that next hop, not mail for the domain through a relay host. If several limits cover a next hop, the narrowest one applies: transport:nexthop comes before nexthop, then .domain, transport: and *. A limit that covers several next hops applies to each separately. If a transport delivers to one recipient at a time (a recipient limit of 1), it has a window for each mailbox, and so has the limit.",
			"mailq shows the limit as the reason why mail waits that was not tried yet, postqueue -j has its destination in the field limited, explain says who has limited what and until when, qshape marks the rows, and the log has who, when and why. The metric posthaste_limits counts the limits.",
		},
		items: []item{
			{"Ar destination", "A next hop: domain; .domain, the next hops below it; [host]:port; transport:nexthop; transport: for every next hop of a transport; or * for every next hop. It may also follow --destination."},
			{"Fl -nexthop Ns = Ns Ar nexthop", "The same as nexthop alone."},
			{"Fl -transport Ns = Ns Ar name", "The same as name with a colon."},
		},
		example: "posthaste limit example.com 2 -n\nposthaste limit example.com 2 --reason 'they answer 421' --for 2h\nposthaste limited\nposthaste unlimit example.com\n" +
			"posthaste limit smtp:[hub.example.org] 50 --raise --reason 'after the outage' --until 18:00",
	}
}

// returnSection describes bounce, unbounce and bounced in posthaste(1).
func returnSection() section {
	return section{
		title: "Returned mail",
		about: []string{
			"Like suspend, the commands bounce, unbounce and bounced are for root and the mail owner, and the mail system must be running.",
			"For the time that is given, mail that is meant is returned to its senders, as if its destination had refused it: the status is 5.7.1, and the notice has the reason. It takes effect when the command returns. Mail that comes is returned, and what waits for its delivery in the active queue; deferred mail is returned at its next attempt: the command says how to have it tried now. Suspended mail is returned when the suspension ends, and mail on hold when it is released. Deliveries in progress are not interrupted. It survives reload, stop and crash, and ends at its time or by unbounce. A second bounce of the same target replaces the first. To return only what is in the queue now, use posthaste queue expire.",
			"Rules of shaping_files with the actions Bounce, BounceTenant and BounceCampaign do the same. They do not change what an operator has ordered of the same target.",
			"explain of the domain, and of tenant=name, says what is returned, by whom and until when, and the log has who, when and why.",
		},
		items: []item{
			{"Ar domain", "Recipients in this domain, or with a leading dot in its subdomains, whatever the next hop. It may also follow --domain."},
			{"Fl -sender Ns = Ns Ar address", "Mail from this envelope sender, written as for suspend."},
			{"Fl -sender-domain Ns = Ns Ar domain", "Mail from senders in this domain."},
			{"Fl -tenant Ns = Ns Ar name", "Mail of this tenant (tenant_maps). --tenant=name->domain means its mail to this domain."},
			{"Fl -campaign Ns = Ns Ar tenant Ns / Ns Ar name", "Mail of this campaign of the tenant, or with ->domain to this domain."},
		},
		example: "posthaste bounce --campaign=news/spring --for 30m --reason 'wrong prices' -n\nposthaste bounce --campaign=news/spring --for 30m --reason 'wrong prices'\n" +
			"posthaste queue flush --campaign=news/spring\nposthaste bounced\nposthaste unbounce --campaign=news/spring",
	}
}

// diversionSection describes divert, undivert and diverted in posthaste(1).
func diversionSection() section {
	return section{
		title: "Diversions",
		about: []string{
			"Like suspend, the commands divert, undivert and diverted are for root and the mail owner, and the mail system must be running.",
			"A diversion sends mail by another next hop than the configuration says, without a reload and only for now: by a second relay host while the first is down, or directly while the relay host is. It replaces the result of the transport tables and of relayhost, before anything else looks at the next hop: concurrency limits, TLS policies and suspensions of next hops are those of the new one. Only mail for other systems is diverted: mail that is delivered on this system, and mail that goes to a content filter, is not. Mail is diverted once, not again from the next hop it was diverted to. If several diversions cover it, the narrowest one applies, as with limits.",
			"It takes effect when the command returns. Mail that waits in the active queue goes the new way at once, and deferred mail at its next attempt: the command says how to try it now. Deliveries in progress are not interrupted. It survives reload, stop and crash, and ends as a suspension does, by undivert or at its time.",
			"postqueue -j has the target of a diversion in the field diverted, explain says who has diverted what, to where and until when, qshape marks the rows, and the log has who, when and why. The metric posthaste_diversions counts the diversions.",
		},
		items: []item{
			{"Ar destination", "A domain: its recipients, and mail whose next hop it is; .domain, the same for its subdomains; [host]:port, a next hop; transport:nexthop; transport: for all of a transport's mail; or * for all mail to other systems."},
			{"Fl -domain Ns = Ns Ar domain", "Recipients in this domain, whatever the next hop."},
			{"Fl -nexthop Ns = Ns Ar nexthop", "Mail with this next hop, whatever the recipients' domains."},
			{"Fl -transport Ns = Ns Ar name", "The same as name with a colon."},
			{"Ar nexthop", "Where the mail goes instead, as in a transport table: a domain or [host]:port by the same transport as before; transport:nexthop; or transport: alone, which delivers to the recipient's domain."},
		},
		example: "posthaste divert '[relay1.example.org]' '[relay2.example.org]:587' --reason 'relay1 is down' --for 2h\nposthaste diverted\nposthaste undivert '[relay1.example.org]'\n" +
			"posthaste divert example.com smtp: --reason 'directly, not by the relay host'",
	}
}
