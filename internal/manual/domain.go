package manual

// domainSection describes posthaste domain.
func domainSection() section {
	return section{
		title: "Domains",
		about: []string{
			"To add a domain is to give it a class in main.cf and a DKIM key, and to print the records to publish. The key is an RSA key of 2048 bits in dkim_key_directory. Its selector says when it was made, as in 202611a, and is never used again. The key is pending at first: no mail is signed with it before its record is published. The file DOMAIN.keys beside the key has the state of each key of the domain. main.cf is changed as by \"postconf -e\", and changed tables are built. The command may be interrupted and repeated at any time: what is done is not done again, and if nothing is left to do nothing is changed. A domain that has another class already is refused.",
			"A key is pending, active, retiring and retired, in this order. \"domain rotate\" takes the keys of the domains, or of all domains that have any, as far as they may go. A pending key becomes active when every authoritative name server of the zone and the resolver of this system show its record. Then its entry is written to the table of dkim_sign_maps, and it signs in the place of the key before, which becomes retiring. After dkim_key_retire_time that key is retired: it is removed, and so may be its record. When the active key is older than dkim_key_lifetime, or with --new, the next key is made. The command prints what waits and which records are to be published. Run it every day, by cron or a timer of systemd. It needs to write to dkim_key_directory and to the table, and for that reason no service does this.",
			"A check looks at a domain as the rest of the world does: at the addresses of this host and their names, the MX records, the certificate and its TLSA records, SPF for each address, the DKIM keys of dkim_sign_maps, DMARC, MTA-STS with its policy, TLS reports, CAA, and what users' programs ask for. Each finding says what was found and, if that is not good, what follows from it and which record to publish. Without a domain, those are checked that main.cf names itself.",
			"The records are made of main.cf, master.cf and the key files alone, and are printed as a fragment of a zone file. The DNS is not asked for them: name servers would remember that they do not exist.",
		},
		items: []item{
			{"Cm domain add Op Fl j Op Fl -class Ns = Ns Ar class Op Fl -dry-run Op Fl -ed25519 Op Fl -login Ns = Ns Ar user Op Fl A Ar address Op Fl a Ar authority Op Fl i Ar host Op Fl p Ar policy Op Fl r Ar reports Ar domain", "Add a domain, and print its records: first as the form of a DNS provider asks for them, then as a fragment of a zone file."},
			{"Cm domain rotate Op Fl jq Op Fl -dry-run Op Fl -new Op Ar domain ...", "Take DKIM keys one step further."},
			{"Cm domain check Op Fl bjq Op Fl A Ar address Op Fl l Ar list Op Fl o Ar domain Op Ar domain ...", "Check domains."},
			{"Cm domain records Op Fl jt Op Fl A Ar address Op Fl a Ar authority Op Fl i Ar host Op Fl p Ar policy Op Fl r Ar reports Ar domain", "Print the records to publish."},
			{"Fl -class Ns = Ns Ar class", "What becomes of mail for the domain: local, for users of this machine (mydestination); virtual, for mailboxes of virtual_mailbox_maps (virtual_mailbox_domains); relay, on to another host (relay_domains); alias, to other addresses (virtual_alias_domains); none, if it does not come here. Without the option, a user at a terminal is asked unless main.cf says it already."},
			{"Fl -dry-run", "Change nothing; print what would be changed."},
			{"Fl -ed25519", "Make an Ed25519 key beside the RSA key. Its selector ends in e."},
			{"Fl -login Ns = Ns Ar user", "This user may send as any address of the domain: add an entry to smtpd_sender_login_maps. The option may be repeated."},
			{"Fl A Ar address", "An address of this host as the world sees it, where it is not that of an interface or in proxy_interfaces. The option may be repeated."},
			{"Fl a Ar authority", "Add a CAA record: only this authority issues certificates for the host."},
			{"Fl b", "Ask the block lists zen.spamhaus.org and bl.spamcop.net."},
			{"Fl i Ar host", "Users read their mail by IMAPS at this host."},
			{"Fl j", "Print JSON: an object for each domain on a line, the list of records, or what was added or changed."},
			{"Fl l Ar list", "Ask this block list, too. The option may be repeated."},
			{"Fl -new", "Make the next keys now."},
			{"Fl o Ar domain", "Try port 25 of this domain's mail servers; an empty one means that port 25 is not tried. The default is gmail.com."},
			{"Fl p Ar policy", "The DMARC policy: none (the default), quarantine or reject."},
			{"Fl q", "Print only what is unknown or wrong, or (rotate) what was changed or is to be done."},
			{"Fl r Ar reports", "The address to which DMARC and TLS reports go; postmaster at the domain by default."},
			{"Fl t", "Print the records as the form of a DNS provider asks for them, each text on one line and without quotes."},
			{"Exit status", "Of a check, for monitoring: 0 if all is good; 1 if the worst finding is a warning; 2 if it is an error; 3 if nothing is wrong that is known, but something could not be found out. Of all: 64 if the command line is wrong; 69 if a file cannot be written; 74 if the output cannot be written; 78 if main.cf or a table is wrong, or the domain has another class."},
		},
		example: `posthaste domain add --class virtual --login ann --dry-run example.org
posthaste domain rotate example.org
posthaste domain records -p reject -r hostmaster@example.org example.org
posthaste domain check -b example.org
posthaste domain check -jq`,
	}
}
