package manual

// domainSection describes posthaste domain.
func domainSection() section {
	return section{
		title: "Domains",
		about: []string{
			"A check looks at a domain as the rest of the world does: at the addresses of this host and their names, the MX records, the certificate and its TLSA records, SPF for each address, the DKIM keys of dkim_sign_maps, DMARC, MTA-STS with its policy, TLS reports, CAA, and what users' programs ask for. Each finding says what was found and, if that is not good, what follows from it and which record to publish. Without a domain, those are checked that main.cf names itself.",
			"The records are made of main.cf, master.cf and the key files alone, and are printed as a fragment of a zone file. The DNS is not asked for them: name servers would remember that they do not exist.",
		},
		items: []item{
			{"Cm domain check Op Fl bjq Op Fl A Ar address Op Fl l Ar list Op Fl o Ar domain Op Ar domain ...", "Check domains."},
			{"Cm domain records Op Fl j Op Fl A Ar address Op Fl a Ar authority Op Fl i Ar host Op Fl p Ar policy Op Fl r Ar reports Ar domain", "Print the records to publish."},
			{"Fl A Ar address", "An address of this host as the world sees it, where it is not that of an interface or in proxy_interfaces. The option may be repeated."},
			{"Fl a Ar authority", "Add a CAA record: only this authority issues certificates for the host."},
			{"Fl b", "Ask the block lists zen.spamhaus.org and bl.spamcop.net."},
			{"Fl i Ar host", "Users read their mail by IMAPS at this host."},
			{"Fl j", "Print JSON: an object for each domain on a line, or the list of records."},
			{"Fl l Ar list", "Ask this block list, too. The option may be repeated."},
			{"Fl o Ar domain", "Try port 25 of this domain's mail servers; an empty one means that port 25 is not tried. The default is gmail.com."},
			{"Fl p Ar policy", "The DMARC policy: none (the default), quarantine or reject."},
			{"Fl q", "Print only what is unknown or wrong."},
			{"Fl r Ar reports", "The address to which DMARC and TLS reports go; postmaster at the domain by default."},
			{"Exit status", "Of a check, for monitoring: 0 if all is good; 1 if the worst finding is a warning; 2 if it is an error; 3 if nothing is wrong that is known, but something could not be found out. Of both: 64 if the command line is wrong; 74 if the output cannot be written; 78 if main.cf or a table is wrong."},
		},
		example: `posthaste domain records -p reject -r hostmaster@example.org example.org
posthaste domain check -b example.org
posthaste domain check -jq`,
	}
}
