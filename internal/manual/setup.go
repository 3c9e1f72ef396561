package manual

// setupSection describes posthaste setup.
func setupSection() section {
	return section{
		title: "Setup",
		about: []string{
			"The command writes a complete main.cf and master.cf, with comments, builds the table of local aliases if /etc/aliases exists, and runs \"posthaste check\". It also prints the settings that \"posthaste check -v\" calls unwise, and what to do next: if a mail system runs, as after the installation of a package, that is \"posthaste reload\". If one of the files has been changed since it was installed, the command writes nothing. Afterwards, edit the files by hand or with postconf(1): the command keeps no other state.",
			"A site has mailboxes for the users of its domains, and refuses mail from strangers to other domains. A relay accepts mail from the networks of its clients and forwards it. A null-client accepts mail from its own programs and forwards it to the relay host. A backup-mx keeps mail for the domains while their servers are down; it asks these servers which recipients are valid. A sender accepts mail from its own programs and delivers it to the Internet.",
		},
		items: []item{
			{"Cm setup Oo Fl -dry-run Oc Oo Fl -acme Fl -acme-agree Oo Fl -acme-email Ar address Oc Oc Oo Fl c Ar config_directory Oc Oo Fl n Ar name Oc Oo Fl r Ar relayhost Oc Oo Fl t Ar chain_file Oc Oo Fl w Ar networks Oc Fl d Ar domain ... Cm site", "A server with mailboxes."},
			{"Cm setup Oo Fl -dry-run Oc Oo Fl -acme Fl -acme-agree Oo Fl -acme-email Ar address Oc Oc Oo Fl c Ar config_directory Oc Oo Fl d Ar domain Oc Oo Fl n Ar name Oc Oo Fl r Ar relayhost Oc Oo Fl t Ar chain_file Oc Fl w Ar networks Cm relay", "A relay for other hosts."},
			{"Cm setup Oo Fl -dry-run Oc Oo Fl c Ar config_directory Oc Oo Fl d Ar domain Oc Oo Fl n Ar name Oc Fl r Ar relayhost Cm null-client", "A host that forwards all mail to another host."},
			{"Cm setup Oo Fl -dry-run Oc Oo Fl -acme Fl -acme-agree Oo Fl -acme-email Ar address Oc Oc Oo Fl c Ar config_directory Oc Oo Fl n Ar name Oc Oo Fl t Ar chain_file Oc Fl d Ar domain ... Cm backup-mx", "A secondary mail exchanger."},
			{"Cm setup Oo Fl -dry-run Oc Oo Fl c Ar config_directory Oc Oo Fl d Ar domain Oc Oo Fl n Ar name Oc Cm sender", "A host that only sends mail."},
			{"Fl -dry-run", "Print the files, and write nothing."},
			{"Fl -acme", "Get the certificate from Let's Encrypt, and renew it: sets tls_acme, and has the acme service answer at port 80. The name of this host must lead here by then."},
			{"Fl -acme-agree", "You have read the terms of service of Let's Encrypt, and accept them. --acme needs this."},
			{"Fl -acme-email Ar address", "The authority may write to this address (tls_acme_account)."},
			{"Fl c Ar config_directory", "Write the files there. The directory is made if it is missing."},
			{"Fl d Ar domain", "A domain of the users (site) or of the servers (backup-mx); the option may be repeated. In the other cases, the domain of senders that have none."},
			{"Fl n Ar name", "The full name of this host. The default is that of the system."},
			{"Fl r Ar relayhost", "The host to which mail for other sites is sent: [host]:port, [host], or a domain with MX records."},
			{"Fl t Ar chain_file", "The file with the private key and the certificate with its chain. Without it, and without --acme, TLS is not offered to clients."},
			{"Fl w Ar networks", "Networks of trusted clients, as address/length, separated by commas. The option may be repeated."},
			{"Exit status", "0 if the configuration was written and the check found no problem; 64 if the command line is wrong; 69 if a file cannot be read; 73 if the existing configuration has been changed; 74 if a file cannot be written; 78 if the check found a problem."},
		},
		example: `posthaste setup --acme --acme-agree -d example.org site
posthaste setup -d example.org -t /etc/posthaste/chain.pem site
posthaste setup -w 192.0.2.0/24,2001:db8::/32 relay
posthaste setup --dry-run -r [mail.example.org]:587 null-client`,
	}
}
