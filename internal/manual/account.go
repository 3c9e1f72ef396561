package manual

// accountSection describes posthaste account.
func accountSection() section {
	return section{
		title: "Accounts",
		about: []string{
			"These commands edit the table of the people who may log in to send mail (smtpd_sasl_type = accounts). The table is the first of account_maps whose text can be edited: texthash, or a type that postmap(1) builds. Services notice a change within a second. The commands are for root.",
			"A password is asked for on the terminal, without echo, or read from the first line of standard input. An application password is for one program or device, and can be withdrawn alone.",
		},
		items: []item{
			{"Cm account add Oo Fl s Ar scheme Oc Ar user", "Make an account. One that is called by an address may send as that address: an entry is added to smtpd_sender_login_maps, if a table is there whose text can be edited. -s is the scheme of the password hash: argon2id (the default), bcrypt or sha512-crypt."},
			{"Cm account passwd Oo Fl s Ar scheme Oc Ar user", "Change a password. Application passwords stay as they are."},
			{"Cm account app-password Oo Fl r Oc Ar user name", "Make an application password and print it, once. With -r, withdraw the password of that name."},
			{"Cm account list Oo Fl j Oc Op Ar user ...", "Print accounts, with -j as a JSON object on a line each."},
			{"Cm account disable Ar user ...", "Keep users out, with all their passwords."},
			{"Cm account enable Ar user ...", "Let them in again."},
			{"Cm account remove Ar user ...", "Remove accounts."},
			{"Cm account usage Oo Fl j Oc Op Ar user ...", "Show how many recipients accounts have sent to, and their limits (account_recipient_limit): all that have sent something, or the named ones. -j prints a JSON object on a line each."},
			{"Cm account unlock Ar user ...", "Let accounts send again that are locked or have reached a limit, as if they had sent nothing."},
		},
	}
}
