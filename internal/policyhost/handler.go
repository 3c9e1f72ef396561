package policyhost

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxBody bounds what is read of a request's body, in octets.
const maxBody = 16 << 10

// handler answers requests. It may be called concurrently.
func (s *site) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/mta-sts.txt", s.mtaSTS)
	mux.HandleFunc("GET /mail/config-v1.1.xml", s.autoconfig)
	mux.HandleFunc("GET /.well-known/autoconfig/mail/config-v1.1.xml", s.autoconfig)
	mux.HandleFunc("GET /email.mobileconfig", s.profile)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, "text/plain; charset=utf-8", []byte("This server tells mail programs and mail servers about the mail domains of its host. It has no pages.\n"))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		// Outlook writes the path of Autodiscover in several ways.
		if strings.EqualFold(r.URL.Path, "/autodiscover/autodiscover.xml") {
			s.autodiscover(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// mtaSTS serves the policy of a domain (RFC 8461 section 3.3), which knows itself by the name that it is
// called by: senders compare that with the certificate.
func (s *site) mtaSTS(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(host(r), "mta-sts.")
	if !ok || s.policy == nil {
		http.NotFound(w, r)
		return
	}
	if domain := s.ours(w, r, name); domain != "" {
		reply(w, "text/plain; charset=utf-8", []byte(s.policy.String()))
	}
}

// autoconfig serves the configuration of a domain to Thunderbird and others. It is called by a name in
// the domain, or by another with the user's address.
func (s *site) autoconfig(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(host(r), "autoconfig.")
	if address := r.URL.Query().Get("emailaddress"); address != "" {
		name = address[strings.LastIndexByte(address, '@')+1:]
	}
	if len(s.servers) == 0 {
		http.NotFound(w, r)
		return
	}
	if domain := s.ours(w, r, name); domain != "" {
		s.document(w, "text/xml; charset=utf-8", s.clientConfig(domain))
	}
}

// ours is a domain of this system. If it is not one, or that is not known, it answers the request, and is "".
func (s *site) ours(w http.ResponseWriter, r *http.Request, name string) string {
	domain, err := s.domain(r.Context(), name)
	if err != nil {
		s.unknown(w, err)
		return ""
	}
	if domain == "" {
		http.NotFound(w, r)
	}
	return domain
}

// unknown answers that a table has failed. The log says why.
func (s *site) unknown(w http.ResponseWriter, err error) {
	if !errors.Is(err, context.Canceled) {
		s.warn("policyhost_domains: " + err.Error())
	}
	http.Error(w, "it is not known at present whether this is a domain of this system", http.StatusServiceUnavailable)
}

// autodiscover answers Outlook ([MS-OXDSCLI] section 3.1.5). What is wrong with a request is said in a document, too.
func (s *site) autodiscover(w http.ResponseWriter, r *http.Request) {
	if len(s.servers) == 0 {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "Autodiscover takes a POST with the address of a user", http.StatusMethodNotAllowed)
		return
	}
	var question struct {
		XMLName xml.Name
		Request struct {
			Address string `xml:"EMailAddress"`
			Schema  string `xml:"AcceptableResponseSchema"`
		} `xml:"Request"`
	}
	d := xml.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := d.Decode(&question); err != nil || !strings.HasPrefix(question.XMLName.Space, requestSchema) {
		s.document(w, "text/xml; charset=utf-8", refusal(600, "Invalid Request"))
		return
	}
	if schema := question.Request.Schema; schema != "" && schema != responseSchema {
		s.document(w, "text/xml; charset=utf-8", refusal(601, "The requested schema is not available"))
		return
	}
	u, err := s.user(r.Context(), strings.TrimSpace(question.Request.Address))
	switch {
	case err != nil:
		s.unknown(w, err)
	case u == nil:
		s.document(w, "text/xml; charset=utf-8", refusal(500, "The address is not of a domain of this server"))
	default:
		s.document(w, "text/xml; charset=utf-8", s.settings(u))
	}
}

// profile serves a configuration profile for Apple's devices.
func (s *site) profile(w http.ResponseWriter, r *http.Request) {
	if len(s.servers) == 0 {
		http.NotFound(w, r)
		return
	}
	u, err := s.user(r.Context(), r.URL.Query().Get("email"))
	switch {
	case err != nil:
		s.unknown(w, err)
	case u == nil:
		http.Error(w, "expected ?email= and an address of a domain of this server", http.StatusNotFound)
	default:
		w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", u.domain+".mobileconfig"))
		reply(w, "application/x-apple-aspen-config; charset=utf-8", s.mobileConfig(u))
	}
}

// document writes an XML document.
func (s *site) document(w http.ResponseWriter, kind string, doc any) {
	text, err := xml.MarshalIndent(doc, "", " ")
	if err != nil { // it is of our own types
		s.warn(err.Error())
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	reply(w, kind, append([]byte(xml.Header), append(text, '\n')...))
}

func reply(w http.ResponseWriter, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(body) // a client that is gone does not get it
}

// host is the name by which a client calls this server, in lower case, without the port.
func host(r *http.Request) string {
	name := r.Host
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// printable says whether a text is UTF-8 without control characters.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}
