package local

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/proto"
	"posthaste/internal/rights"
	"posthaste/local/mailbox"
	"posthaste/local/users"
)

// settings is what main.cf says. It is read once and never changed, so that any number of
// deliveries may use it at once.
type settings struct {
	hostname, mailName string // myhostname and mail_name, for the Received: line of what is forwarded
	// autoUTF8 is set if forwarded mail is looked through for whether it needs SMTPUTF8
	// (smtputf8_autodetect_classes).
	autoUTF8   proto.SubmitFlags
	delimiters string // recipient_delimiter: any of these begins an extension; empty: there are none
	// forwardLimit is how many octets of recipients one forwarded message may have. A list that has
	// more is spread over several messages.
	forwardLimit int64
	// ownerRequest is owner_request_special: owner-NAME and NAME-request are whole names, and
	// problems with the members of NAME go to owner-NAME. With expandOwner they go to what that
	// stands for. With resetOwner a list without owner- is not its outer list's to answer for.
	ownerRequest, expandOwner, resetOwner bool
	doubleBounce                          string // double_bounce_sender: never taken apart at a delimiter
	originalRecipient                     bool   // enable_original_recipient: X-Original-To: is written
	// frozen is frozen_delivered_to: Delivered-To: has the address that local was given, and not what
	// aliases made of it.
	frozen         bool
	confirmCleared bool      // senders who were warned of a delay hear of each member's delivery
	headers        expansion // which deliveries get a Delivered-To: line, by kind of delivery
	// commands and files are where |command and /file are allowed. By default not in :include:
	// files, which are often written by others than who names them.
	commands, files expansion
	propagate       expansion // which expansions hand an extension on to what they lead to
	duplicates      int       // duplicate_filter_limit: destinations that are remembered; 0: no limit
	mailboxLimit    int64     // mailbox_size_limit, in octets; 0: none
	locks           mailbox.Lock
	strictOwner     bool // strict_mailbox_ownership: a mailbox file must be its user's own
	requireHome     bool // require_home_directory: mail waits for a home directory that is not mounted

	forwardPath   []string // in this order; empty: users cannot forward
	forwardFilter string   // what of an address may be in the name of such a file

	// What the mailbox of a user is, and where mail for nobody goes. Empty: not used.
	mailboxTransport, fallbackTransport string // transport:nexthop
	mailboxCommand, homeMailbox         string
	spoolDir, luser                     string

	commandLimit          time.Duration // command_time_limit: then the command is killed, and the mail is tried again
	commandDir, dirFilter string        // where commands run; empty: in the queue directory
	// commandFilter has the characters that a command may be shown of what strangers have written:
	// no others reach its environment, and so none that a shell takes for its own.
	commandFilter, shell string
	exports              []string    // export_environment: NAME, or NAME=VALUE
	privileged           *users.User // default_privs
	mailOwner            int         // user id; -1: none but our own
	mailGroup            int         // mail_owner's, which no command gets; 0: there is none
}

// expansion is a set of the kinds of expansions that a destination can be in,
// or of deliveries.
type expansion uint8

const (
	inAlias   expansion = 1 << iota // an alias of alias_maps
	inForward                       // a user's .forward file
	inInclude                       // an :include: file, whoever names it
	toCommand
	toFile
	toForward
)

// parseExpansions reads a list of such words. Postfix ends with a fatal error at one that it does
// not know, and so does the error of newAgent.
func parseExpansions(cfg *config.Config, name string, words map[string]expansion) (expansion, error) {
	var set expansion
	list := cfg.List(name)
	for _, w := range list {
		bit, ok := words[strings.ToLower(w)]
		if !ok {
			return 0, fmt.Errorf("%s: %q is not known", name, w)
		}
		set |= bit
	}
	return set, nil
}

// sources are the words of allow_mail_to_commands and allow_mail_to_files.
var sources = map[string]expansion{"alias": inAlias, "forward": inForward, "include": inInclude}

// readSettings reads main.cf. Its errors name the parameter.
func readSettings(cfg *config.Config, db users.Database) (*settings, error) {
	s := &settings{
		hostname: cfg.String("myhostname"), mailName: cfg.String("mail_name"),
		autoUTF8:   proto.AutoUTF8(cfg.List("smtputf8_autodetect_classes"), "forward"),
		delimiters: cfg.String("recipient_delimiter"), ownerRequest: cfg.Bool("owner_request_special"),
		expandOwner: cfg.Bool("expand_owner_alias"), resetOwner: cfg.Bool("reset_owner_alias"),
		doubleBounce:      cfg.String("double_bounce_sender"),
		originalRecipient: cfg.Bool("enable_original_recipient"), frozen: cfg.Bool("frozen_delivered_to"), confirmCleared: cfg.Bool("confirm_delay_cleared"),
		duplicates: cfg.Int("duplicate_filter_limit"),
		// What the spool records as one is half a segment; cleanup may add to
		// addresses what they were before its maps.
		forwardLimit: cfg.Bytes("spool_segment_size") / 8,
		mailboxLimit: cfg.Bytes("mailbox_size_limit"), strictOwner: cfg.Bool("strict_mailbox_ownership"),
		requireHome:   cfg.Bool("require_home_directory"),
		forwardPath:   strings.FieldsFunc(cfg.String("forward_path"), func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) }),
		forwardFilter: cfg.String("forward_expansion_filter"), mailboxTransport: cfg.String("mailbox_transport"),
		fallbackTransport: cfg.String("fallback_transport"), mailboxCommand: cfg.Raw("mailbox_command"),
		homeMailbox: cfg.String("home_mailbox"), spoolDir: cfg.String("mail_spool_directory"), luser: cfg.String("luser_relay"),
		commandLimit: cfg.Duration("command_time_limit"), commandDir: cfg.String("command_execution_directory"),
		dirFilter: cfg.String("execution_directory_expansion_filter"), commandFilter: cfg.String("command_expansion_filter"),
		shell: cfg.String("local_command_shell"), exports: cfg.List("export_environment"),
	}
	var err error
	if s.headers, err = parseExpansions(cfg, "prepend_delivered_header", map[string]expansion{"command": toCommand, "file": toFile, "forward": toForward}); err != nil {
		return nil, err
	}
	if s.commands, err = parseExpansions(cfg, "allow_mail_to_commands", sources); err != nil {
		return nil, err
	}
	if s.files, err = parseExpansions(cfg, "allow_mail_to_files", sources); err != nil {
		return nil, err
	}
	// canonical, virtual and generic are for cleanup and smtp, and no mistake here.
	propagation := map[string]expansion{"alias": inAlias, "forward": inForward, "include": inInclude, "canonical": 0, "virtual": 0, "generic": 0}
	if s.propagate, err = parseExpansions(cfg, "propagate_unmatched_extensions", propagation); err != nil {
		return nil, err
	}
	if s.locks, err = mailbox.ParseLocks(cfg.List("mailbox_delivery_lock")); err != nil {
		return nil, fmt.Errorf("mailbox_delivery_lock: %w", err)
	}
	// Without a lock, a mail reader that rewrites the mailbox loses what is appended meanwhile.
	if s.locks == 0 {
		return nil, errors.New("mailbox_delivery_lock: expected at least one of dotlock, fcntl or flock")
	}
	// Postfix ends over this, too: such mail would wait for days and then come back.
	if limit := cfg.Bytes("message_size_limit"); s.mailboxLimit > 0 && (limit == 0 || limit > s.mailboxLimit) {
		return nil, fmt.Errorf("mailbox_size_limit = %d is smaller than message_size_limit: mail would be accepted for which no mailbox has room", s.mailboxLimit)
	}
	return s, s.privileges(cfg, db)
}

// privileges finds out who has the rights that are nobody's in particular, and
// who must not have any.
func (s *settings) privileges(cfg *config.Config, db users.Database) error {
	owner, err := db.Lookup(cfg.String("mail_owner"))
	if err != nil {
		return fmt.Errorf("mail_owner: %w", err)
	}
	s.mailOwner = -1
	if owner != nil {
		s.mailGroup = owner.GID
		// Where all runs as one user, as in tests, that user is the queue's owner and everybody else.
		if rights.Switching() {
			s.mailOwner = owner.UID
		}
	}
	name := cfg.String("default_privs")
	s.privileged, err = db.Lookup(name)
	switch {
	case err != nil:
	case s.privileged == nil:
		err = fmt.Errorf("there is no user %q", name)
	case s.privileged.UID == 0 || s.privileged.GID == 0:
		err = fmt.Errorf("user %q has root's rights, or group", name)
	case s.privileged.UID == s.mailOwner:
		err = fmt.Errorf("user %q is mail_owner, whose the queue is", name)
	}
	if err != nil {
		return fmt.Errorf("default_privs: %w", err)
	}
	return nil
}
