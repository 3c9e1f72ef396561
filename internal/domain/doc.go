// Package domain is the command "posthaste domain": it adds a mail domain, says which DNS records
// it should have, and checks what the world sees of it.
//
//	posthaste domain add [-j] [--class class] [--dry-run] [--ed25519] [--login user] [...] domain
//	posthaste domain rotate [-jq] [--dry-run] [--new] [domain ...]
//	posthaste domain check [-bjq] [-A address] [-l list] [-o domain] [domain ...]
//	posthaste domain records [-jt] [-A address] [-a authority] [-i imap_host] [-p policy] [-r reports] domain
//
// # Add
//
// The domain gets its class in main.cf, and a DKIM key of 2048 bits under a selector that says the
// month (202611a), with --ed25519 one of that kind as well (202611ae). A key is pending first, since
// no signature can be verified before its record is published. --login adds an entry to
// smtpd_sender_login_maps. The class is that of --class: local (mydestination), virtual
// (virtual_mailbox_domains), relay (relay_domains), alias (virtual_alias_domains) or none; somebody
// at a terminal is asked. A domain that has another class is refused. main.cf is changed as by
// postconf -e, and tables that are changed are built. Then the records are printed, as a web form
// asks for them and as a fragment of a zone file. With --dry-run, it is only told what would
// change.
//
// Nothing is written in part, and nothing refers to what is not there yet. After an interruption,
// the same command does what is left. A command that has nothing to do changes nothing, and says
// so.
//
// # Rotate
//
// A key is pending, active, retiring and retired, one after the other; the file DOMAIN.keys in
// dkim_key_directory has the states. Rotate takes each key as far as it may go:
//
//   - pending becomes active when every authoritative name server of the zone, asked by itself, and
//     the resolver of this system show the record. Then the entry of the signing table is changed,
//     and only then. The active key of the same kind becomes retiring.
//   - retiring becomes retired after dkim_key_retire_time. The private key is removed.
//   - with --new, or when the active key is older than dkim_key_lifetime, the next key is made,
//     pending.
//
// So nothing is ever signed with a key whose record is not visible. Without a domain, all domains
// with a file of keys are looked at. The signing table has the last word: what it names is active,
// whatever the file says, so that a run that was interrupted between the two is completed by the
// next one.
//
// It is meant to be run every day, or more often while a key is pending, by cron or a timer. No
// service does this work: it needs write access to the keys and to the table, which no process that talks
// to strangers should have, and it takes seconds a day. Its user must be able to write to
// dkim_key_directory and to the directory of the signing table; that is root unless both are given to
// another user. It needs no capabilities but CAP_CHOWN, and the network only for questions to
// the DNS.
//
// # Check
//
// Without a domain, those are checked that mydestination, virtual_alias_domains,
// virtual_mailbox_domains and relay_domains name themselves, but for myhostname, unless it is the
// only one. Each finding has a level, an area
// and a sentence; what is not good also says what follows, and the record to publish.
//
//	address     myhostname, its addresses, and their names in the DNS
//	outward     whether port 25 of other hosts can be reached; not with a relayhost
//	blocklist   DNS block lists, with -b or -l
//	mx          that the domain's mail comes here, that main.cf takes it, and that the MX hosts
//	            which lead here answer at all their addresses, IPv4 and IPv6
//	tls         the certificate that the MX hosts show on port 25
//	dane        their TLSA records
//	spf         the record, evaluated for each address of this host
//	dkim        the published keys, against those of dkim_sign_maps
//	dmarc       the policy, and whether reports are sent
//	mta-sts     the record, and the policy as it is fetched
//	tls-rpt     where reports on TLS go
//	caa         who may issue certificates for the host
//	submission  the SRV records of the submission ports in master.cf
//	autoconfig  what Thunderbird and others fetch
//
// The levels are good; note, for what could be better; unknown, if a server does not answer;
// warning, if some mail is treated worse; and error, if mail is lost, refused or taken for
// forged. With -q, only what is unknown or wrong is printed; with -j, one JSON object for each
// domain, on a line, with domain, host, level and findings (area, level, text, why, publish).
//
// The host's addresses are those of its interfaces and of proxy_interfaces that are public, and of a
// family that inet_protocols names; -A
// names them instead, once for each. -b asks the block lists zen.spamhaus.org and
// bl.spamcop.net for them, -l the list of that name. The mail servers of gmail.com are those
// whose port 25 is tried; -o names another domain, and an empty one means that none is tried.
//
// # Records
//
// They are printed as a fragment of a zone file, in which those of the host are comments if it is not in
// the domain, with -t as web forms ask for them, or with -j as JSON (name, type, data, why), and
// are made of main.cf, master.cf and the key files: the DNS is not asked. -p is the DMARC policy
// (none), -r the address to which DMARC and TLS reports go (postmaster at the domain), -i the
// host at which users read their mail by IMAPS, -a the authority that issues certificates
// (letsencrypt.org), for a CAA record.
//
// # Security
//
// Add and rotate alone change something. Keys are in dkim_key_directory, which is root's: the mail system may
// read them, and cannot change what it signs with. Root writes nothing by name in directories of
// others. What strangers publish is bounded, and printed without control
// characters. Policies are fetched from public addresses only, and those that
// smtp_https_networks allows.
//
// # Standards
//
// RFC 7208 (SPF), RFC 6376 and RFC 8301 (DKIM), RFC 9989 and RFC 9990 (DMARC), RFC 7672 and RFC
// 7671 (DANE), RFC 8461 (MTA-STS), RFC 8460 (TLSRPT), RFC 8659 (CAA), RFC 6186 and RFC 8314
// (SRV), RFC 5782 (block lists), RFC 7505 (null MX).
//
// # Parameters
//
// myhostname, inet_interfaces, inet_protocols, proxy_interfaces, relayhost, mydestination,
// virtual_alias_domains, virtual_mailbox_domains, relay_domains, dkim_sign_maps, dkim_key_directory,
// dkim_key_lifetime, dkim_key_retire_time, mail_owner, smtpd_sender_login_maps, smtp_https_networks, and those of the resolver.
//
// # Diagnostics
//
// The exit status of check is for monitoring: 0 if all is good, 1 if the worst is a warning, 2 if
// it is an error, 3 if nothing is wrong but something is unknown. All: 64 wrong usage; 69 a file
// cannot be written; 74 the output cannot be written; 78 wrong configuration, or a domain of
// another class.
package domain
