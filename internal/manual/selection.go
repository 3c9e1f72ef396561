package manual

import (
	"bytes"
	"fmt"
)

// selectionText says what a condition is; a test holds its names to package selection's.
var selectionText = []struct {
	longOption
	about string
}{
	{longOption{"sender", "address", none, "from this sender"}, "From this sender: an address, @domain, @.domain for its subdomains, <> for the null sender, or /regular expression/."},
	{longOption{"recipient", "address", none, "to this recipient"}, "To this recipient, before or after aliases, written as for --sender."},
	{longOption{"domain", "domain", site, "to this domain"}, "To a recipient in this domain; with a dot before it, in one of its subdomains."},
	{longOption{"nexthop", "nexthop", none, "by this next hop"}, "To a recipient whose current next hop is this: a domain or .domain, [host]:port, transport:nexthop."},
	{longOption{"transport", "name", none, "by this transport"}, "To a recipient whose current transport is this."},
	{longOption{"destination", "destination", site, "to this destination"}, "To a recipient in this domain, or whose current next hop is this, written as for suspend."},
	{longOption{"reply", "text", none, "with this reply"}, "The reply to the last attempt contains this text, ignoring case, or matches /regular expression/."},
	{longOption{"older", "time", none, "queued for longer"}, "Queued for longer than this time: 30m, 2h, 1d."},
	{longOption{"younger", "time", none, "queued for less"}, "Queued for less than this time."},
	{longOption{"larger", "size", none, "larger"}, "Larger than this: octets, or with k, m or g."},
	{longOption{"smaller", "size", none, "smaller"}, "Smaller than this."},
	{longOption{"queue", "name", "incoming|active|deferred|hold|corrupt", "in this queue"}, "In this queue: incoming, active, deferred, hold or corrupt."},
	{longOption{"tenant", "name", none, "of this tenant"}, "Mail of this tenant (tenant_maps)."},
	{longOption{"campaign", "tenant/name", none, "of this campaign"}, "Mail of this campaign of the tenant."},
	{longOption{"waits-for", "destination", site, "that waits for this"}, "Mail that waits for a delivery there, as the queue manager has it now and qshape counts it: a next hop, transport:nexthop, or transport:. Mail that has not been tried since the queue manager was started waits for nothing that it knows."},
	{longOption{"source", "name", none, "that waits to go from this source"}, "Mail that waits for a delivery from this source of egress_source_maps."},
	{longOption{"all-recipients", "", none, "every recipient must match"}, "The conditions on recipients must match every recipient that has not received the message."},
	{longOption{"dry-run", "", none, "change nothing"}, "Change nothing: list and count what would be changed."},
}

// selectionOptions are the long options, for completion.
func selectionOptions() []longOption {
	list := make([]longOption, len(selectionText))
	for i := range selectionText {
		list[i] = selectionText[i].longOption
	}
	return list
}

// selectionSection describes the conditions in a page.
func selectionSection(about ...string) section {
	s := section{title: "Selecting mail", about: append(about,
		"A condition that is given several times matches if any of its values does; different conditions must all match. The conditions on recipients (--recipient, --domain, --nexthop, --transport, --destination, --reply) must all match the same recipient, among those that have not received the message; one such recipient is enough to select the message. A value follows an equals sign, or is the next word.")}
	for _, o := range selectionText {
		tag := "Fl -" + o.name
		if o.arg != "" {
			tag += " Ns = Ns Ar " + o.arg
		}
		s.items = append(s.items, item{tag, o.about})
	}
	return s
}

// bashLong adds the cases of long options to a branch of bash's function, and returns their names.
func bashLong(b *bytes.Buffer, list []longOption) (names []string) {
	for _, o := range list {
		names = append(names, "--"+o.name)
		if o.arg != "" {
			fmt.Fprintf(b, "        --%s) %s; return ;;\n", o.name, bashKind(o.kind))
		}
	}
	return names
}

// zshLong adds long options to zsh's _arguments.
func zshLong(b *bytes.Buffer, list []longOption) {
	for _, o := range list {
		spec := fmt.Sprintf("*--%s[%s]", o.name, o.text)
		if o.arg != "" {
			spec = fmt.Sprintf("*--%s=[%s]:%s:%s", o.name, o.text, o.arg, zshKind(o.kind))
		}
		fmt.Fprintf(b, " \\\n    %s", zshQuote(spec))
	}
}
