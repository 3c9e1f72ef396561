package manual

// setupSection describes posthaste setup.
func setupSection() section {
	return section{
		title: "Setup",
		about: []string{
			"The command writes main.cf and master.cf whole, with comments, builds the table of local aliases if there is /etc/aliases, and runs \"posthaste check\". What \"posthaste check -v\" calls unwise is printed, too. A file that has been changed since it was installed is never overwritten: then nothing is written. The files are changed by hand or with postconf(1) afterwards, and the command keeps no other state.",
			"A site has mailboxes for the users of its domains, and refuses strangers who write to others. A relay takes mail from the networks of its clients and sends it on. A null-client takes mail from its own programs and gives it to the relay host. A backup-mx keeps mail for the servers of the domains while these are down; it asks them which recipients there are. A sender takes mail from its own programs and sends it to the world.",
		},
		items: []item{
			{"Cm setup Op Fl -dry-run Op Fl c Ar config_directory Op Fl n Ar name Op Fl r Ar relayhost Op Fl t Ar chain_file Op Fl w Ar networks Fl d Ar domain ... Cm site", "A server with mailboxes."},
			{"Cm setup Op Fl -dry-run Op Fl c Ar config_directory Op Fl d Ar domain Op Fl n Ar name Op Fl r Ar relayhost Op Fl t Ar chain_file Fl w Ar networks Cm relay", "A relay for other hosts."},
			{"Cm setup Op Fl -dry-run Op Fl c Ar config_directory Op Fl d Ar domain Op Fl n Ar name Fl r Ar relayhost Cm null-client", "A host all of whose mail goes to another host."},
			{"Cm setup Op Fl -dry-run Op Fl c Ar config_directory Op Fl n Ar name Op Fl t Ar chain_file Fl d Ar domain ... Cm backup-mx", "A secondary mail exchanger."},
			{"Cm setup Op Fl -dry-run Op Fl c Ar config_directory Op Fl d Ar domain Op Fl n Ar name Cm sender", "A host that only sends."},
			{"Fl -dry-run", "Print the files, and write nothing."},
			{"Fl c Ar config_directory", "Write the files there. The directory is made if it is missing."},
			{"Fl d Ar domain", "A domain of the users (site) or of the servers (backup-mx); the option may be repeated. In the other cases, the domain of senders that have none."},
			{"Fl n Ar name", "The full name of this host. The default is that of the system."},
			{"Fl r Ar relayhost", "The host that takes mail for other places: [host]:port, [host], or a domain whose MX records count."},
			{"Fl t Ar chain_file", "The file with the private key and the certificate with its chain. Without it, TLS is not offered to clients."},
			{"Fl w Ar networks", "Networks of trusted clients, as address/length, with commas between. The option may be repeated."},
			{"Exit status", "0 if the configuration was written and the check is content; 64 if the command line is wrong; 69 if a file cannot be read; 73 if there is a configuration that was changed; 74 if a file cannot be written; 78 if the check found something."},
		},
		example: `posthaste setup -d example.org -t /etc/posthaste/chain.pem site
posthaste setup -w 192.0.2.0/24,2001:db8::/32 relay
posthaste setup --dry-run -r [mail.example.org]:587 null-client`,
	}
}
