package setup

import (
	"slices"
	"strings"
)

// A mainText is a main.cf that is being written.
type mainText struct{ strings.Builder }

// section begins a part of the file.
func (t *mainText) section(title string) { t.WriteString("\n# ---- " + title + "\n") }

// set writes a setting below its comment, of which each line is given by itself.
func (t *mainText) set(setting string, comment ...string) {
	t.WriteString("\n")
	for _, l := range comment {
		t.WriteString("# " + l + "\n")
	}
	t.WriteString(setting + "\n")
}

// what says what each case is for.
var what = map[string]string{
	"site":        "A mail server for domains whose users have mailboxes here",
	"relay":       "A relay: it sends the mail of the hosts in our networks",
	"null-client": "A host whose programs send mail, all of it by way of another host",
	"backup-mx":   "A secondary mail exchanger: it keeps mail for a server that is down",
	"sender":      "A host whose programs send mail to the world, and that receives none",
}

// head is how both files begin.
func (c *choice) head() string {
	return "# " + what[c.kind] + ".\n# Made by \"posthaste setup " + c.kind + "\".\n"
}

// main is the text of main.cf.
func (c *choice) main() string {
	t := new(mainText)
	t.WriteString(c.head())
	t.WriteString(`#
# A line is "name = value"; a line that begins with white space continues the one before it.
# Whatever is not set here has its default: "postconf -d" lists them, "postconf -n" shows what
# this file changes, "postconf -e name=value" changes it, and main.cf(5) explains it. After a
# change: posthaste check, posthaste reload.
`)
	t.set("compatibility_level = 3.6", "Defaults changed with time; this says as of which release they are meant.")
	c.identity(t)
	c.accepted(t)
	c.delivered(t)
	c.encrypted(t)
	t.section("The log")
	t.set("#maillog_file = /var/log/mail.log", "By default the system's log. A file instead:")
	return t.String()
}

// identity writes who we are.
func (c *choice) identity(t *mainText) {
	t.section("Who we are")
	t.set("myhostname = "+c.name, "The name of this machine in the DNS. Its address must lead back to it.")
	_, domain, _ := strings.Cut(c.name, ".")
	if len(c.domains) > 0 && c.kind != "backup-mx" {
		domain = c.domains[0]
	}
	t.set("mydomain = "+domain, "The domain that $mydomain stands for.")
	switch {
	case len(c.domains) > 0 && c.kind != "backup-mx":
		t.set("myorigin = $mydomain", "What is added to a sender without a domain, such as root.")
	default:
		t.set("myorigin = $myhostname", "What is added to a sender without a domain, such as root.")
	}
}

// accepted writes what mail is taken, and from whom.
func (c *choice) accepted(t *mainText) {
	t.section("What we accept")
	if c.kind == "null-client" || c.kind == "sender" {
		t.set("inet_interfaces = loopback-only", "Only programs on this machine send mail by us.")
	} else {
		t.set("inet_interfaces = all", "Addresses to listen on: all, loopback-only, or a list.")
	}
	if c.kind == "null-client" {
		t.set("mydestination =", "Nobody has a mailbox here: mail for this machine goes to the relay host, too.")
		return
	}
	local := []string{"$myhostname", "localhost.$mydomain", "localhost"}
	if c.kind == "site" {
		local = append(local, "$mydomain")
		local = append(local, c.domains[1:]...)
		t.set("mydestination = "+strings.Join(local, ", "), "Domains whose users have accounts here. Virtual mailboxes are in docs/mailboxes.md; a", "domain is in one of these lists only.")
	} else {
		t.set("mydestination = "+strings.Join(slices.DeleteFunc(local, func(s string) bool { return s == "localhost.$mydomain" }), ", "), "Mail for this machine itself: what its own programs send to root and postmaster.")
	}
	if len(c.networks) > 0 {
		t.set("mynetworks = 127.0.0.0/8, [::1]/128, "+strings.Join(c.networks, ", "), "Clients that may send mail to anywhere. Every machine in them is trusted.")
	} else {
		t.set("mynetworks_style = host", "Clients that may send mail to anywhere: this machine alone.")
	}
	c.restricted(t)
	t.set("smtpd_helo_required = yes", "A client says who it is,")
	t.set("disable_vrfy_command = yes", "and does not ask for names of users.")
}

// restricted writes which mail of strangers is refused.
func (c *choice) restricted(t *mainText) {
	switch c.kind {
	case "site":
		t.set("smtpd_relay_restrictions = permit_mynetworks, permit_sasl_authenticated,\n    reject_unauth_destination", "Strangers send mail to our users only.")
		t.set("smtpd_recipient_restrictions = reject_non_fqdn_sender, reject_non_fqdn_recipient,\n    reject_unknown_sender_domain", "Mail that nobody could answer is refused. More of this kind is in docs/smtpd.md.")
		t.set("mail_authentication = check", "Check mail of strangers by SPF, DKIM and DMARC, and say in its header what was found.")
		t.set("#dmarc_reject = yes", "Refuse what the author's domain asks to be refused. Look at the results first.")
	case "relay":
		t.set("smtpd_client_restrictions = permit_mynetworks, reject", "Nobody else has any business here.")
		t.set("smtpd_relay_restrictions = permit_mynetworks, reject_unauth_destination", "Should the line above go: strangers send mail to our users only.")
	case "backup-mx":
		c.backup(t)
	default:
		t.set("smtpd_relay_restrictions = permit_mynetworks, reject_unauth_destination", "Strangers send mail to our users only.")
	}
}

// backup writes for whom a secondary mail exchanger takes mail.
func (c *choice) backup(t *mainText) {
	t.set("relay_domains = "+strings.Join(c.domains, ", "), "Domains for whose servers we keep mail. Their MX records name this host after the first.")
	t.set("#relay_recipient_maps = hash:/etc/posthaste/relay_recipients", "Which addresses there are. With such a table nothing below is needed: mail for others", "could only be returned to a sender who is mostly forged.")
	t.set("smtpd_relay_restrictions = permit_mynetworks, reject_unauth_destination", "Strangers send mail to these domains only.")
	t.set("smtpd_recipient_restrictions = reject_non_fqdn_sender, reject_unknown_sender_domain,\n    reject_unverified_recipient", "Without a table, the first server is asked whether it would take the mail. The answer is", "kept.")
	t.set("unverified_recipient_tempfail_action = permit", "While it is down and nothing is known of an address, its mail is taken.")
}

// delivered writes where mail goes.
func (c *choice) delivered(t *mainText) {
	t.section("Where it goes")
	switch {
	case c.relay != "":
		t.set("relayhost = "+c.relay, "All mail for other places goes there. [brackets] mean the host itself, not its MX records.", "If it wants a password: smtp_sasl_auth_enable and smtp_sasl_password_maps, docs/relay.md.")
	case c.kind == "site" || c.kind == "relay":
		t.set("#relayhost = [smtp.example.com]:587", "A host that takes all mail for other places; without one we find the way ourselves.")
	}
	if c.kind == "null-client" {
		t.set("local_transport = error:5.1.1 there are no mailboxes on this host", "Mail for an IP address of this machine, which could not go anywhere else.")
		t.set("alias_maps =", "There are no aliases of local users either.")
		t.set("alias_database =")
		return
	}
	if c.aliases {
		t.set("alias_maps = hash:/etc/aliases", "Aliases of local users, for example whose mail postmaster and root have. Run newaliases", "after editing the file.")
		t.set("alias_database = $alias_maps", "What newaliases builds.")
	} else {
		t.set("alias_maps =", "Aliases of local users: make /etc/aliases, set this to hash:/etc/aliases, run newaliases.")
		t.set("alias_database =", "What newaliases builds: the same.")
	}
	switch c.kind {
	case "site":
		t.set("home_mailbox = Maildir/", "Mailboxes: a directory in the user's home. Without it, a file below /var/mail.")
		t.set("recipient_delimiter = +", "Separates user from extension, as in user+lists@example.com.")
	case "backup-mx":
		t.set("maximal_queue_lifetime = 10d", "How long mail waits for a server that is down.")
	case "sender":
		t.set("maximal_queue_lifetime = 2d", "Who sends by programs wants to know soon what cannot be delivered.")
	}
}

// encrypted writes what TLS is used.
func (c *choice) encrypted(t *mainText) {
	t.section("TLS")
	t.set("smtp_tls_security_level = may", "Encrypt to servers that offer it, without asking who they are. With a resolver that", "verifies DNSSEC: dane, and smtp_dns_support_level = dnssec.")
	if c.kind == "null-client" || c.kind == "sender" {
		return
	}
	c.certificate(t)
	if c.kind == "site" {
		t.set("smtpd_tls_auth_only = yes", "Passwords are taken under TLS only. Users log in at the submission ports of master.cf, which", "docs/submission.md opens.")
	}
}
