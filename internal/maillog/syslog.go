package maillog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"posthaste/internal/reuse"
)

// A Syslog is where syslog is, and what it is told.
type Syslog struct {
	Protocol string // rfc3164, rfc5424 or journal
	// Socket is the path of a datagram socket, or udp:ADDRESS:PORT with a
	// numeric address; empty for the usual place of the protocol.
	Socket   string
	Facility string // mail, local0, ...
	JSON     bool   // the text of each line is a JSON object; a journal has fields anyway
}

// usual are the sockets of this machine's log services.
var usual = map[string]string{"rfc3164": "/dev/log", "rfc5424": "/dev/log", "journal": "/run/systemd/journal/socket"}

// NewSyslog returns a Sink that sends to a log service, to which it connects
// when there is something to send, or at Reopen.
func NewSyslog(o Syslog) (Sink, error) {
	code, ok := facilities[o.Facility]
	if !ok {
		return nil, fmt.Errorf("syslog_facility = %s: expected a facility such as mail or local0", o.Facility)
	}
	if o.Socket == "" {
		o.Socket = usual[o.Protocol]
	}
	remote, udp := strings.CutPrefix(o.Socket, "udp:")
	if _, err := netip.ParseAddrPort(remote); udp && err != nil || !udp && !strings.HasPrefix(o.Socket, "/") {
		return nil, fmt.Errorf("syslog_socket = %s: expected the path of a socket, or udp:ADDRESS:PORT", o.Socket)
	}
	d := datagrams{address: o.Socket}
	switch {
	case o.Protocol == "journal" && udp:
		return nil, fmt.Errorf("syslog_socket = %s: a journal is on this machine: expected the path of its socket", o.Socket)
	case o.Protocol == "journal":
		return &journalSink{datagrams: d, facility: code}, nil
	case o.Protocol == "rfc5424":
		return &syslogSink{datagrams: d, facility: code << 3, format: RFC5424, json: o.JSON}, nil
	case udp:
		return &syslogSink{datagrams: d, facility: code << 3, format: SyslogHost, json: o.JSON}, nil
	}
	return &syslogSink{datagrams: d, facility: code << 3, format: LocalSyslog, json: o.JSON}, nil
}

// facilities are those of RFC 3164 section 4.1.1, by their usual names.
var facilities = map[string]int{
	"kern": 0, "user": 1, "mail": 2, "daemon": 3, "auth": 4, "syslog": 5, "lpr": 6, "news": 7, "uucp": 8,
	"cron": 9, "authpriv": 10, "ftp": 11, "security": 4, "local0": 16, "local1": 17, "local2": 18, "local3": 19,
	"local4": 20, "local5": 21, "local6": 22, "local7": 23,
}

// syslogSink sends lines to a log service, one in a datagram.
type syslogSink struct {
	datagrams
	facility int
	format   Format
	json     bool
	buf      []byte
}

func (s *syslogSink) Format() Format { return s.format }

func (s *syslogSink) Write(lines []byte) (taken int, err error) {
	return eachLine(lines, func(line []byte) error {
		err := s.send(s.frame(line))
		if errors.Is(err, unix.EMSGSIZE) {
			err = s.send(s.frame(line[:min(len(line), 1024)])) // RFC 3164 section 4.1
		}
		return err
	})
}

// eachLine has send take one line after the other.
func eachLine(lines []byte, send func(line []byte) error) (taken int, err error) {
	for taken < len(lines) {
		line := lines[taken:]
		n := bytes.IndexByte(line, '\n')
		if n < 0 {
			n = len(line) - 1
		}
		if err := send(line[:n]); err != nil {
			return taken, err
		}
		taken += n + 1
	}
	return taken, nil
}

// frame puts the facility into the line.
func (s *syslogSink) frame(line []byte) []byte {
	severity := LevelInfo.syslog()
	if i := bytes.IndexByte(line, '>'); i > 0 {
		if n, err := strconv.Atoi(string(line[1:i])); err == nil {
			severity = n & 7
		}
		line = line[i+1:]
	}
	s.buf = append(strconv.AppendInt(append(s.buf[:0], '<'), int64(s.facility|severity), 10), '>')
	s.buf = append(s.buf, line...)
	return s.buf
}

// journalSink sends lines to systemd's journal by its own protocol: a field on
// each line, one entry in a datagram. The keys of JSON lines become fields, so
// that "journalctl MAIL_QUEUE_ID=..." finds the lines of a message.
type journalSink struct {
	datagrams
	facility int
	buf      []byte
}

func (s *journalSink) Format() Format { return JSON }

func (s *journalSink) Write(lines []byte) (taken int, err error) {
	return eachLine(lines, func(line []byte) error {
		entry, err := s.entry(line)
		if err != nil {
			panic(fmt.Sprintf("maillog: a line that is not JSON: %v: %q", err, line))
		}
		return s.send(entry)
	})
}

// journalFields are the journal's own names for what every line has. What is
// not here, and not left out, gets a name of ours.
var journalFields = map[string]string{"text": "MESSAGE", "process": "SYSLOG_IDENTIFIER", "pid": "SYSLOG_PID", "time": "", "host": "", "level": ""}

// entry is the datagram for a line. Values have no line ends: the Logger has
// seen to that.
func (s *journalSink) entry(line []byte) ([]byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		return nil, err
	}
	b := reuse.Truncated(s.buf)
	for _, key := range slices.Sorted(maps.Keys(members)) {
		name, ok := journalFields[key]
		if !ok {
			name = "MAIL_" + strings.ToUpper(key)
		}
		value := string(members[key])
		if value[0] == '"' {
			if err := json.Unmarshal(members[key], &value); err != nil {
				return nil, err
			}
		}
		if key == "level" {
			level := Level(max(0, slices.Index(levelNames[:], value)))
			b = append(b, "PRIORITY="+strconv.Itoa(level.syslog())+"\n"...)
		}
		if name != "" {
			b = append(append(append(append(b, name...), '='), value...), '\n')
		}
	}
	s.buf = append(b, "SYSLOG_FACILITY="+strconv.Itoa(s.facility)+"\n"...)
	return s.buf, nil
}
