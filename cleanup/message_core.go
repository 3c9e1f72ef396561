// What all messages of a process share: parameters and open tables. Every parameter of
// the message core is read here, so that a mistake in one is found at the start and not
// with the first message.

package cleanup

import (
	"context"
	"errors"
	"slices"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/srs"
	"posthaste/internal/srs/srsconf"
	"posthaste/internal/suppress/suppressclient"
	"posthaste/internal/table"
)

// A Rewriter puts addresses into standard form; it is trivial-rewrite, or a function in
// tests. It may be called concurrently. The context is "local" or "remote" (package
// trivialrewrite). An error means that the service could not be asked; the message is
// then refused for now.
type Rewriter interface {
	Rewrite(ctx context.Context, rewriteContext, addr string) (string, error)
}

// classes is a set of the places where an address can stand, as sender_canonical_classes
// and the like name them.
type classes uint8

const (
	classEnvelopeSender classes = 1 << iota
	classEnvelopeRecipient
	classHeaderSender
	classHeaderRecipient
)

var classNames = map[string]classes{
	"envelope_sender":    classEnvelopeSender,
	"envelope_recipient": classEnvelopeRecipient,
	"header_sender":      classHeaderSender,
	"header_recipient":   classHeaderRecipient,
}

// Core is what all messages of a process share. It is not changed after NewCore, and many
// goroutines use it. Close it when no message uses it any more.
type Core struct {
	// Standard form of addresses, and how an address becomes the keys of a table.
	rewriter Rewriter
	search   *table.Search

	// Missing header fields: see header_missing.go.
	hostname        string // myhostname, in Message-Id:
	remoteDomain    bool   // remote_header_rewrite_domain is set
	alwaysAdd       bool   // always_add_missing_headers: also to mail from remote clients
	undisclosed     string // undisclosed_recipients_header; empty: no To: is added
	fromObsolete    bool   // header_from_format = obsolete: address (name)
	fullNameCharset string // full_name_encoding_charset
	// message_drop_headers; names in any letter case
	dropHeaders []string

	// Addresses: see map.go. An empty Maps finds nothing. The classes say where each
	// applies.
	senderCanonical, rcptCanonical, canonical                *table.Maps
	senderCanonicalFor, rcptCanonicalFor, canonicalFor, masq classes
	masqueradeDomains                                        []masqueradeDomain
	masqueradeExceptions                                     *table.List
	// Limits of virtual alias expansion: addresses that one becomes, rounds, octets of
	// one.
	virtual                                      *table.Maps
	propagateCanonical, propagateVirtual         bool
	expansionLimit, recursionLimit, addressLimit int
	// Automatic recipients, and the recipient that mail for the empty address goes to.
	senderBCC, rcptBCC *table.Maps
	lists              *suppressclient.Lists // suppress_list_maps, suppress_tenants; nil: no mail is under the suppression list
	alwaysBCC          string
	emptyRecipient     string
	srs                *srs.Rewriter // takes addresses of rewritten senders apart; nil: there are none
	// duplicate_filter_limit; 0: no limit
	duplicateLimit    int
	originalRecipient bool // enable_original_recipient

	// Checks by tables, and limits on the content that bound memory and time.
	headerChecks, mimeChecks, nestedChecks, bodyChecks *table.Maps
	bodyCheckSize                                      int64 // body_checks_size_limit: octets that are checked; 0: all
	headerLimit                                        int   // header_size_limit: octets of one header field
	// line_length_limit: lines are looked at in parts of this length
	lineLimit int
	// header_address_token_limit: of a field, so many words are parsed for addresses
	tokenLimit int
	// hopcount_limit and message_size_limit; a size of 0 is none
	hopLimit  int
	sizeLimit int64

	// MIME structure is looked at (disable_mime_input_processing), to this depth, with
	// boundaries up to this length.
	mime          bool
	downgrade     bool // force_mime_input_conversion
	mimeDepth     int
	boundaryLimit int
	strict        strictness
	endOfHeader   string              // non_empty_end_of_header_action
	logForm       maillog.AddressForm // info_log_address_format
	replaceStray  bool                // cleanup_replace_stray_cr_lf: by spaces
	// Unwanted octets; nil: none are.
	reject, strip *byteSet
	detect8Bit    bool // detect_8bit_encoding_header: Content-Transfer-Encoding: makes mail 8BITMIME
	// smtputf8_enable: whether mail without SMTPUTF8 is looked through for the need of
	// it.
	utf8 bool
	// tls_required_enable: the TLS-Required field (RFC 8689) is heeded.
	tlsRequired     bool
	tenancy         tenants
	unsub           unsubscriber
	requireTLSField bool // Require-TLS-ESMTP: is read and written
}

// strictness is which faults of MIME are not forgiven.
type strictness struct {
	header8Bit, body8Bit, encoding bool
}

// NewCore makes a Core of cfg. rw is asked about addresses; o is for the lookup tables.
// Tables that cannot be opened are no error here: their lookups fail, and mail waits. The
// error names every parameter that cannot be used, so that the postmaster need not find
// them one by one.
func NewCore(cfg *config.Config, rw Rewriter, o table.Options) (*Core, error) {
	maps := func(name string) *table.Maps { return table.OpenMaps(name, cfg.List(name), o) }
	c := &Core{
		rewriter:          rw,
		hostname:          cfg.String("myhostname"),
		remoteDomain:      cfg.String("remote_header_rewrite_domain") != "",
		alwaysAdd:         cfg.Bool("always_add_missing_headers"),
		undisclosed:       cfg.String("undisclosed_recipients_header"),
		fromObsolete:      cfg.String("header_from_format") == "obsolete",
		fullNameCharset:   cfg.String("full_name_encoding_charset"),
		dropHeaders:       cfg.List("message_drop_headers"),
		senderCanonical:   maps("sender_canonical_maps"),
		rcptCanonical:     maps("recipient_canonical_maps"),
		canonical:         maps("canonical_maps"),
		virtual:           maps("virtual_alias_maps"),
		expansionLimit:    cfg.Int("virtual_alias_expansion_limit"),
		recursionLimit:    cfg.Int("virtual_alias_recursion_limit"),
		addressLimit:      cfg.Int("virtual_alias_address_length_limit"),
		senderBCC:         maps("sender_bcc_maps"),
		rcptBCC:           maps("recipient_bcc_maps"),
		alwaysBCC:         cfg.String("always_bcc"),
		emptyRecipient:    cfg.String("empty_address_recipient"),
		duplicateLimit:    cfg.Int("duplicate_filter_limit"),
		originalRecipient: cfg.Bool("enable_original_recipient"),
		headerChecks:      maps("header_checks"),
		mimeChecks:        maps("mime_header_checks"),
		nestedChecks:      maps("nested_header_checks"),
		bodyChecks:        maps("body_checks"),
		bodyCheckSize:     cfg.Bytes("body_checks_size_limit"),
		headerLimit:       cfg.Int("header_size_limit"),
		lineLimit:         cfg.Int("line_length_limit"),
		tokenLimit:        cfg.Int("header_address_token_limit"),
		hopLimit:          cfg.Int("hopcount_limit"),
		sizeLimit:         cfg.Bytes("message_size_limit"),
		mime:              !cfg.Bool("disable_mime_input_processing"),
		downgrade:         cfg.Bool("force_mime_input_conversion") && !cfg.Bool("disable_mime_input_processing"),
		mimeDepth:         cfg.Int("mime_nesting_limit"),
		boundaryLimit:     cfg.Int("mime_boundary_length_limit"),
		endOfHeader:       cfg.String("non_empty_end_of_header_action"),
		logForm:           maillog.FormOf(cfg),
		replaceStray:      cfg.Bool("cleanup_replace_stray_cr_lf"),
		reject:            newByteSet(cfg.String("message_reject_characters")),
		strip:             newByteSet(cfg.String("message_strip_characters")),
		detect8Bit:        cfg.Bool("detect_8bit_encoding_header"),
		utf8:              cfg.Bool("smtputf8_enable"),
		tlsRequired:       cfg.Bool("tls_required_enable"),
		requireTLSField:   cfg.Bool("requiretls_enable") && cfg.Bool("requiretls_esmtp_header"),
	}
	c.strict = strictness{
		// strict_8bitmime is both of the others, as in Postfix.
		header8Bit: cfg.Bool("strict_7bit_headers") || cfg.Bool("strict_8bitmime"),
		body8Bit:   cfg.Bool("strict_8bitmime_body") || cfg.Bool("strict_8bitmime"),
		encoding:   cfg.Bool("strict_mime_encoding_domain"),
	}
	var err error
	c.srs, err = srsconf.Load(cfg)
	propagate := cfg.List("propagate_unmatched_extensions")
	c.propagateCanonical = slices.Contains(propagate, "canonical")
	c.propagateVirtual = slices.Contains(propagate, "virtual")
	return c, errors.Join(err, c.initClasses(cfg), c.initMasquerade(cfg, o), c.initTenancy(cfg, o), c.initUnsubscribe(cfg), c.initSearch(cfg, o))
}

// initClasses reads the parameters that name classes. An unknown word is an error: it may
// be a misspelt class whose addresses would stay as they are.
func (c *Core) initClasses(cfg *config.Config) error {
	var errs []error
	for _, p := range []struct {
		name string
		set  *classes
	}{
		{"sender_canonical_classes", &c.senderCanonicalFor},
		{"recipient_canonical_classes", &c.rcptCanonicalFor},
		{"canonical_classes", &c.canonicalFor},
		{"masquerade_classes", &c.masq},
	} {
		for _, word := range cfg.List(p.name) {
			class, ok := classNames[strings.ToLower(word)]
			if !ok {
				errs = append(errs, errors.New(p.name+": "+word+": expected envelope_sender, envelope_recipient, header_sender or header_recipient"))
			}
			*p.set |= class
		}
	}
	return errors.Join(errs...)
}

// initMasquerade reads masquerade_domains, in order: the first that matches counts.
func (c *Core) initMasquerade(cfg *config.Config, o table.Options) (err error) {
	for _, d := range cfg.List("masquerade_domains") {
		m := masqueradeDomain{replace: true}
		// Postfix takes "!!" for nothing.
		for strings.HasPrefix(d, "!") {
			m.replace = !m.replace
			d = d[1:]
		}
		// A lone "!" names nothing.
		if m.name = strings.ToLower(d); m.name != "" {
			c.masqueradeDomains = append(c.masqueradeDomains, m)
		}
	}
	c.masqueradeExceptions, err = table.NewList("masquerade_exceptions", cfg.List("masquerade_exceptions"),
		table.ListOptions{Kind: table.Strings, Table: o})
	return err
}

// initSearch prepares how an address becomes the keys of a table: with and without its
// extension, user alone if the domain is local, @domain.
func (c *Core) initSearch(cfg *config.Config, o table.Options) error {
	local, err := table.OpenLocal(context.Background(), cfg, o)
	if err != nil {
		return err
	}
	if c.lists, err = suppressclient.OpenLists(cfg, o); err != nil {
		return err
	}
	c.search = &table.Search{
		Delimiters:   cfg.String("recipient_delimiter"),
		OwnerRequest: cfg.Bool("owner_request_special"),
		DoubleBounce: cfg.String("double_bounce_sender"),
		// A table may list a bare user name for addresses in local domains.
		Local: local.IsLocal,
	}
	return nil
}

// Close closes the tables. The Core cannot be used afterwards.
func (c *Core) Close() error {
	var errs []error
	for _, m := range []*table.Maps{c.senderCanonical, c.rcptCanonical, c.canonical, c.virtual, c.senderBCC, c.rcptBCC, c.tenancy.maps, c.tenancy.pools,
		c.headerChecks, c.mimeChecks, c.nestedChecks, c.bodyChecks} {
		errs = append(errs, m.Close())
	}
	errs = append(errs, c.lists.Close())
	return errors.Join(errs...)
}

// headerContext is the rewriting context of a message's header fields. "" means that they
// are left alone, as those of remote mail are unless remote_header_rewrite_domain is set.
func (c *Core) headerContext(envelope string) string {
	if envelope == "remote" && !c.remoteDomain {
		return ""
	}
	if envelope == "remote" {
		return "remote"
	}
	return "local"
}

// byteSet is a set of octets.
type byteSet [256]bool

// newByteSet reads the characters of a parameter with the escapes of C; nil when there
// are none.
func newByteSet(text string) *byteSet {
	if text == "" {
		return nil
	}
	var s byteSet
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+1 < len(text) {
			c, i = unescape(text, i+1)
		}
		s[c] = true
	}
	return &s
}

// unescape reads the escape whose backslash is before i, and returns the index of its
// last character. An escape that C does not know stands for its letter.
func unescape(text string, i int) (byte, int) {
	switch c := text[i]; c {
	case 'a':
		return 7, i
	case 'b':
		return 8, i
	case 'f':
		return 12, i
	case 'n':
		return 10, i
	case 'r':
		return 13, i
	case 't':
		return 9, i
	case 'v':
		return 11, i
	// At most three digits, as in C.
	case '0', '1', '2', '3', '4', '5', '6', '7':
		v := 0
		j := i
		for ; j < len(text) && j < i+3 && text[j] >= '0' && text[j] <= '7'; j++ {
			v = v*8 + int(text[j]-'0')
		}
		return byte(v), j - 1
	default:
		return c, i
	}
}
