package policyhost

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// clientConfig is the document of draft-ietf-mailmaint-autoconfig, in the version that Thunderbird reads.
type clientConfig struct {
	XMLName  xml.Name `xml:"clientConfig"`
	Version  string   `xml:"version,attr"`
	Provider struct {
		ID       string       `xml:"id,attr"`
		Domain   string       `xml:"domain"`
		Name     string       `xml:"displayName"`
		Short    string       `xml:"displayShortName"`
		Incoming []configHost `xml:"incomingServer"`
		Outgoing []configHost `xml:"outgoingServer"`
	} `xml:"emailProvider"`
}

type configHost struct {
	Type     string `xml:"type,attr"`
	Host     string `xml:"hostname"`
	Port     int    `xml:"port"`
	Socket   string `xml:"socketType"`
	Method   string `xml:"authentication"`
	UserName string `xml:"username"`
}

// clientConfig is the configuration of a domain. The mail program puts the user's name in.
func (s *site) clientConfig(domain string) *clientConfig {
	c := &clientConfig{Version: "1.1"}
	p := &c.Provider
	p.ID, p.Domain, p.Name, p.Short = domain, domain, s.title(domain), s.title(domain)
	name := "%EMAILADDRESS%"
	if s.local {
		name = "%EMAILLOCALPART%"
	}
	for _, srv := range s.servers {
		socket := "STARTTLS"
		if srv.wrapped {
			socket = "SSL"
		}
		h := configHost{srv.protocol, srv.host, srv.port, socket, "password-cleartext", name} // inside TLS
		if srv.protocol == "smtp" {
			p.Outgoing = append(p.Outgoing, h)
		} else {
			p.Incoming = append(p.Incoming, h)
		}
	}
	return c
}

// Namespaces of Autodiscover.
const (
	requestSchema  = "http://schemas.microsoft.com/exchange/autodiscover/outlook/requestschema/2006"
	responseSchema = "http://schemas.microsoft.com/exchange/autodiscover/outlook/responseschema/2006a"
	errorSchema    = "http://schemas.microsoft.com/exchange/autodiscover/responseschema/2006"
)

// discovered is the answer of Autodiscover: an account or an error.
type discovered struct {
	XMLName  xml.Name `xml:"http://schemas.microsoft.com/exchange/autodiscover/responseschema/2006 Autodiscover"`
	Response struct {
		Schema  string      `xml:"xmlns,attr"`
		Account *discoverAs `xml:"Account"`
		Error   *notFound   `xml:"Error"`
	} `xml:"Response"`
}

type discoverAs struct {
	Type     string         `xml:"AccountType"`
	Action   string         `xml:"Action"`
	Protocol []discoverHost `xml:"Protocol"`
}

type discoverHost struct {
	Type       string `xml:"Type"` // IMAP, POP3 or SMTP
	Server     string `xml:"Server"`
	Port       int    `xml:"Port"`
	LoginName  string `xml:"LoginName"`
	SSL        string `xml:"SSL"` // on or off
	Encryption string `xml:"Encryption"`
	SPA        string `xml:"SPA"` // a login of Windows'
	Auth       string `xml:"AuthRequired"`
}

type notFound struct {
	Code    int    `xml:"ErrorCode"`
	Message string `xml:"Message"`
	Debug   string `xml:"DebugData"`
}

// settings tells Outlook the servers of a user.
func (s *site) settings(u *user) *discovered {
	d := new(discovered)
	d.Response.Schema = responseSchema
	a := &discoverAs{Type: "email", Action: "settings"}
	d.Response.Account = a
	for _, srv := range s.servers {
		encryption := "TLS" // which is Outlook's word for STARTTLS
		if srv.wrapped {
			encryption = "SSL"
		}
		a.Protocol = append(a.Protocol, discoverHost{strings.ToUpper(srv.protocol), srv.host, srv.port, s.login(u), "on", encryption, "off", "on"})
	}
	return d
}

// refusal is the answer to a request that cannot be met.
func refusal(code int, message string) *discovered {
	d := new(discovered)
	d.Response.Schema = errorSchema
	d.Response.Error = &notFound{Code: code, Message: message}
	return d
}

// mobileConfig is a configuration profile. Its identifiers are made of the address, so that a later profile of
// the same user replaces it.
func (s *site) mobileConfig(u *user) []byte {
	in, out := s.first("imap"), s.first("smtp")
	kind := "EmailTypeIMAP"
	if in == nil {
		in, kind = s.first("pop3"), "EmailTypePOP"
	}
	id := func(part string) string {
		return uuid.NewSHA1(uuid.NameSpaceURL, []byte("mailto:"+u.address+"#"+part)).String()
	}
	payload := dict{
		{"PayloadType", "com.apple.mail.managed"},
		{"PayloadVersion", 1},
		{"PayloadIdentifier", "email." + id("account")},
		{"PayloadUUID", id("account")},
		{"PayloadDisplayName", s.title(u.domain)},
		{"EmailAccountDescription", s.title(u.domain)},
		{"EmailAccountType", kind},
		{"EmailAddress", u.address},
		{"IncomingMailServerHostName", in.host},
		{"IncomingMailServerPortNumber", in.port},
		{"IncomingMailServerUseSSL", true},
		{"IncomingMailServerUsername", s.login(u)},
		{"IncomingMailServerAuthentication", "EmailAuthPassword"},
		{"OutgoingMailServerHostName", out.host},
		{"OutgoingMailServerPortNumber", out.port},
		{"OutgoingMailServerUseSSL", true},
		{"OutgoingMailServerUsername", s.login(u)},
		{"OutgoingMailServerAuthentication", "EmailAuthPassword"},
		{"OutgoingPasswordSameAsIncomingPassword", true},
	}
	var b bytes.Buffer
	b.WriteString(xml.Header + `<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">` + "\n<plist version=\"1.0\">\n")
	dict{
		{"PayloadType", "Configuration"},
		{"PayloadVersion", 1},
		{"PayloadIdentifier", "email." + id("profile")},
		{"PayloadUUID", id("profile")},
		{"PayloadDisplayName", s.title(u.domain)},
		{"PayloadDescription", "Mail account " + u.address},
		{"PayloadContent", []dict{payload}},
	}.write(&b)
	b.WriteString("</plist>\n")
	return b.Bytes()
}

// first is the first server of a protocol, or nil.
func (s *site) first(protocol string) *server {
	for i := range s.servers {
		if s.servers[i].protocol == protocol {
			return &s.servers[i]
		}
	}
	return nil
}

// A dict is a dictionary of a property list, in order. Values are of the types string, int, bool and []dict.
type dict []struct {
	key   string
	value any
}

func (d dict) write(b *bytes.Buffer) {
	b.WriteString("<dict>\n")
	for _, e := range d {
		fmt.Fprintf(b, "<key>%s</key>", e.key)
		switch v := e.value.(type) {
		case string:
			b.WriteString("<string>")
			_ = xml.EscapeText(b, []byte(v)) // a buffer takes all
			b.WriteString("</string>\n")
		case int:
			fmt.Fprintf(b, "<integer>%d</integer>\n", v)
		case bool:
			fmt.Fprintf(b, "<%t/>\n", v)
		case []dict:
			b.WriteString("<array>\n")
			for _, inner := range v {
				inner.write(b)
			}
			b.WriteString("</array>\n")
		}
	}
	b.WriteString("</dict>\n")
}
