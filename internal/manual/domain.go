package manual

// domainSection describes posthaste domain.
func domainSection() section {
	return section{
		title: "Domains",
		about: []string{
			"\"domain add\" gives a domain a class in main.cf and a DKIM key, and prints the records to publish. The key is an RSA key of 2048 bits in dkim_key_directory. Its selector is the date of its creation, as in 202611a, and is never used again. The key is pending at first: no mail is signed with it before its record is published. The file DOMAIN.keys beside the key has the state of each key of the domain. main.cf is changed as by \"postconf -e\", and changed tables are built. The command may be interrupted and repeated at any time: completed steps are not repeated, and if nothing remains to be done nothing is changed. A domain that already has another class is refused.",
			"A key is pending, active, retiring and retired, in this order. \"domain rotate\" advances the keys of the given domains, or of all domains with keys, as far as possible. A pending key becomes active when every authoritative name server of the zone and this system's resolver show its record. Its entry is then written to the table of dkim_sign_maps, and it replaces the previous signing key, which becomes retiring. After dkim_key_retire_time that key is retired: it is removed, and its record may be removed as well. When the active key is older than dkim_key_lifetime, or with --new, the next key is made. The command prints which steps are pending and which records must be published. Run it every day, with cron or a systemd timer. It must be able to write to dkim_key_directory and to the table; that is why no service does this.",
			"\"domain check\" looks at a domain from outside: the addresses of this host and their names, the MX records, the certificate and its TLSA records, SPF for each address, the DKIM keys of dkim_sign_maps, DMARC, MTA-STS with its policy, TLS reports, CAA, and the records that mail programs use. Each finding says what was found and, if there is a problem, what its consequences are and which record to publish. Without an argument, the domains named in main.cf itself are checked, but not myhostname, unless it is the only one. Every address of the MX hosts that lead here is tried, of IPv4 and IPv6.",
			"The records are made from main.cf, master.cf and the key files alone, and are printed as a fragment of a zone file. Those of the host are comments in it if the host is not in the domain, since they are in another zone. They are not looked up in the DNS, because name servers would cache that they do not exist.",
		},
		items: []item{
			{"Cm domain add Oo Fl j Oc Oo Fl -class Ns = Ns Ar class Oc Oo Fl -dry-run Oc Oo Fl -ed25519 Oc Oo Fl -login Ns = Ns Ar user Oc Oo Fl A Ar address Oc Oo Fl a Ar authority Oc Oo Fl i Ar host Oc Oo Fl p Ar policy Oc Oo Fl r Ar reports Oc Ar domain", "Add a domain, and print its records: first in the form that DNS providers' web pages use, then as a fragment of a zone file."},
			{"Cm domain rotate Oo Fl jq Oc Oo Fl -dry-run Oc Oo Fl -new Oc Op Ar domain ...", "Advance the DKIM keys of the domains, or of all: a key whose record every name server shows signs mail, and one that is old is followed by the next. With --new, the next one is made now."},
			{"Cm domain check Oo Fl bjq Oc Oo Fl A Ar address Oc Oo Fl l Ar list Oc Oo Fl o Ar domain Oc Op Ar domain ...", "Check what the world sees of the domains, or of those in main.cf. -q leaves out what is good, -b also asks block lists, -A gives a public address of this host, and -o with an empty domain leaves out whether port 25 is open outward. The exit status is 0 if all is good, 1 for a warning, 2 for an error, and 3 if something is not known."},
			{"Cm domain records Oo Fl jt Oc Oo Fl A Ar address Oc Oo Fl a Ar authority Oc Oo Fl i Ar host Oc Oo Fl p Ar policy Oc Oo Fl r Ar reports Oc Ar domain", "Print the records to publish, as a fragment of a zone file, or with -t as web pages ask for them. -p is the DMARC policy, -r the address for reports."},
			{"Fl -class Ns = Ns Ar class", "The class of the domain: local, for users of this machine (mydestination); virtual, for mailboxes in virtual_mailbox_maps (virtual_mailbox_domains); relay, to another host (relay_domains); alias, to other addresses (virtual_alias_domains); none, if its mail is not received here. Without the option, a user at a terminal is asked, unless main.cf has the domain already."},
			{"Fl -dry-run", "Change nothing; print what would be changed."},
			{"Fl -ed25519", "Make an Ed25519 key in addition to the RSA key. Its selector ends in e."},
			{"Fl -login Ns = Ns Ar user", "This user may send as any address of the domain: add an entry to smtpd_sender_login_maps. The option may be repeated."},
			{"Fl A Ar address", "A public address of this host that is neither that of an interface nor in proxy_interfaces. The option may be repeated."},
			{"Fl a Ar authority", "Add a CAA record: only this authority issues certificates for the host."},
			{"Fl b", "Query the block lists zen.spamhaus.org and bl.spamcop.net."},
			{"Fl i Ar host", "The IMAPS server where users read their mail."},
			{"Fl j", "Print JSON: an object for each domain on a line, the list of records, or what was added or changed."},
			{"Fl l Ar list", "Also query this block list. The option may be repeated."},
			{"Fl -new", "Make the next keys now."},
			{"Fl o Ar domain", "Try port 25 of this domain's mail servers; an empty one means that port 25 is not tried. The default is gmail.com."},
			{"Fl p Ar policy", "The DMARC policy: none (the default), quarantine or reject."},
			{"Fl q", "Print only unknown and failed results, or (rotate) only changes and required actions."},
			{"Fl r Ar reports", "The address to which DMARC and TLS reports go; postmaster at the domain by default."},
			{"Fl t", "Print the records in the form that DNS providers' web pages use, each text on one line and without quotes."},
			{"Exit status", "Of a check, for monitoring: 0 if all is good; 1 if the worst finding is a warning; 2 if it is an error; 3 if no problem was found but something could not be checked. For all: 64 if the command line is wrong; 69 if a file cannot be written; 74 if the output cannot be written; 78 if main.cf or a table is wrong, or the domain has another class."},
		},
		example: `posthaste domain add --class virtual --login ann --dry-run example.org
posthaste domain rotate example.org
posthaste domain records -p reject -r hostmaster@example.org example.org
posthaste domain check -b example.org
posthaste domain check -jq`,
	}
}
