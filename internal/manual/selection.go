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
	{longOption{"nexthop", "nexthop", none, "by this next hop"}, "To a recipient whose mail goes there as things are now: a domain or .domain, [host]:port, transport:nexthop."},
	{longOption{"transport", "name", none, "by this transport"}, "To a recipient whose mail goes by this transport."},
	{longOption{"destination", "destination", site, "to this destination"}, "To a recipient in this domain, or whose mail goes to this next hop as things are now: what suspend takes for a destination."},
	{longOption{"reply", "text", none, "with this reply"}, "The last attempt was answered with this text, in any letter case, or with what matches /regular expression/."},
	{longOption{"older", "time", none, "queued for longer"}, "Queued for longer than this time: 30m, 2h, 1d."},
	{longOption{"younger", "time", none, "queued for less"}, "Queued for less than this time."},
	{longOption{"larger", "size", none, "larger"}, "Larger than this: octets, or with k, m or g."},
	{longOption{"smaller", "size", none, "smaller"}, "Smaller than this."},
	{longOption{"queue", "name", "incoming|active|deferred|hold|corrupt", "in this queue"}, "In this queue: incoming, active, deferred, hold or corrupt."},
	{longOption{"all-recipients", "", none, "every recipient fulfils them"}, "The conditions on recipients must hold for every recipient that has not received the message."},
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
		"A condition that is given several times is fulfilled by any of its values; different conditions must all be fulfilled. Those on recipients (--recipient, --domain, --nexthop, --transport, --destination, --reply) must be fulfilled by one and the same recipient, of those that have not got the message. The message is selected as soon as one recipient fulfils them. Values follow an equals sign, or are the next word.")}
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
