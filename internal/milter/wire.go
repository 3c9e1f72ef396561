package milter

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"posthaste/internal/mailfilter"
)

// Commands, from us to the filter.
const (
	cmdAbort   = 'A'
	cmdBody    = 'B'
	cmdConnect = 'C'
	cmdMacro   = 'D'
	cmdEOM     = 'E'
	cmdHelo    = 'H'
	cmdQuitNC  = 'K'
	cmdHeader  = 'L'
	cmdMail    = 'M'
	cmdEOH     = 'N'
	cmdOptions = 'O'
	cmdQuit    = 'Q'
	cmdRcpt    = 'R'
	cmdData    = 'T'
	cmdUnknown = 'U'
)

// Replies, from the filter to us.
const (
	repAddRcpt    = '+'
	repDelRcpt    = '-'
	repAddRcptPar = '2'
	repShutdown   = '4'
	repAccept     = 'a'
	repReplBody   = 'b'
	repContinue   = 'c'
	repDiscard    = 'd'
	repChgFrom    = 'e'
	repConnFail   = 'f'
	repAddHeader  = 'h'
	repInsHeader  = 'i'
	repChgHeader  = 'm'
	repProgress   = 'p'
	repQuarantine = 'q'
	repReject     = 'r'
	repSkip       = 's'
	repTempFail   = 't'
	repCode       = 'y'
)

// Actions that a filter may ask to be allowed.
const (
	actAddHeaders   = 1 << iota
	actChgBody      // replace the body
	actAddRcpt      // without parameters
	actDelRcpt      //
	actChgHeaders   // change and delete
	actQuarantine   //
	actChgFrom      // change the envelope sender
	actAddRcptPar   // with parameters
	actSetMacroList // name the macros that it wants
)

// Protocol steps that a filter may ask to be left out, or to be changed.
const (
	stepNoConnect = 1 << iota
	stepNoHelo
	stepNoMail
	stepNoRcpt
	stepNoBody
	stepNoHeaders
	stepNoEOH
	stepNRHeader // no reply is sent
	stepNoUnknown
	stepNoData
	stepSkip    // the filter may say that it has seen enough of the body
	stepRcptRej // the filter is told of recipients that are refused
	stepNRConnect
	stepNRHelo
	stepNRMail
	stepNRRcpt
	stepNRData
	stepNRUnknown
	stepNREOH
	stepNRBody
	stepLeadSpace // header values with the space after the colon
)

// offered is what each version of the protocol knows, of what we can do. All
// actions are offered to all, as Postfix does: a filter of an old version does not
// ask for what it does not know.
// There never was a version 5 on the wire.
var offered = map[int]struct{ actions, steps uint32 }{
	2: {0x1ff, 0x7f},
	3: {0x1ff, 0x7f | stepNoUnknown},
	4: {0x1ff, 0x7f | stepNoUnknown | stepNoData},
	6: {0x1ff, 0x7f | stepNoUnknown | stepNoData | stepNRHeader | stepSkip | stepRcptRej | stepNRConnect | stepNRHelo | stepNRMail |
		stepNRRcpt | stepNRData | stepNRUnknown | stepNREOH | stepNRBody | stepLeadSpace},
}

const (
	// chunkSize is how much of a body goes in one packet: all filters take
	// this much.
	chunkSize = 65535
	// maxPacket bounds what is read of a filter at once. libmilter sends
	// packets of at most chunkSize.
	maxPacket = 128 << 10
)

// A packet is one reply.
type packet struct {
	kind byte
	data []byte // valid until the next is read
}

var errPacket = errors.New("malformed packet")

// readPacket reads one packet into buf, which it may replace.
func readPacket(r *bufio.Reader, buf *[]byte) (packet, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:4]); err != nil {
		return packet{}, err
	}
	n := binary.BigEndian.Uint32(head[:4])
	if n == 0 || n > maxPacket {
		return packet{}, fmt.Errorf("%w: length %d, expected 1 to %d", errPacket, n, maxPacket)
	}
	kind, err := r.ReadByte()
	if err != nil {
		return packet{}, unexpected(err)
	}
	if cap(*buf) < int(n) {
		*buf = make([]byte, n)
	}
	data := (*buf)[:n-1]
	if _, err := io.ReadFull(r, data); err != nil {
		return packet{}, unexpected(err)
	}
	return packet{kind, data}, nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// appendPacket appends a packet whose data fill writes.
func appendPacket(b []byte, kind byte, fill func([]byte) []byte) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, kind)
	if fill != nil {
		b = fill(b)
	}
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// appendStrings appends strings with their NULs. A NUL inside would end a
// string early: it is left out.
func appendStrings(b []byte, list ...string) []byte {
	for _, s := range list {
		for i := 0; i < len(s); i++ {
			if s[i] != 0 {
				b = append(b, s[i])
			}
		}
		b = append(b, 0)
	}
	return b
}

// cutString takes a NUL-terminated string off p.
func cutString(p []byte) (s string, rest []byte, ok bool) {
	i := bytes.IndexByte(p, 0)
	if i < 0 {
		return "", p, false
	}
	return string(p[:i]), p[i+1:], true
}

// strings takes want to max NUL-terminated strings that make up all of p.
func (p packet) strings(want, most int) ([]string, error) {
	var list []string
	rest := p.data
	for len(rest) > 0 && len(list) < most {
		s, r, ok := cutString(rest)
		if !ok {
			return nil, fmt.Errorf("%w: string without end in reply %q", errPacket, p.kind)
		}
		list, rest = append(list, s), r
	}
	if len(list) < want {
		return nil, fmt.Errorf("%w: reply %q has %d strings, expected %d", errPacket, p.kind, len(list), want)
	}
	return list, nil
}

// index takes a number off the front.
func (p *packet) index() (uint32, error) {
	if len(p.data) < 4 {
		return 0, fmt.Errorf("%w: reply %q without index", errPacket, p.kind)
	}
	n := binary.BigEndian.Uint32(p.data)
	p.data = p.data[4:]
	return n, nil
}

// options is what both sides say when a connection begins.
type options struct {
	version        int
	actions, steps uint32
	macros         map[mailfilter.Stage][]string // macro lists that the filter asked for
}

func (o options) append(b []byte) []byte {
	return appendPacket(b, cmdOptions, func(b []byte) []byte {
		b = binary.BigEndian.AppendUint32(b, uint32(o.version))
		b = binary.BigEndian.AppendUint32(b, o.actions)
		return binary.BigEndian.AppendUint32(b, o.steps)
	})
}

// parseOptions reads the filter's answer to what was offered. It must not ask
// for actions that were not.
func parseOptions(p packet, offer options) (options, error) {
	if p.kind != cmdOptions || len(p.data) < 12 {
		return options{}, fmt.Errorf("%w: reply %q of %d octets to the option negotiation", errPacket, p.kind, len(p.data))
	}
	o := options{
		version: int(binary.BigEndian.Uint32(p.data)),
		actions: binary.BigEndian.Uint32(p.data[4:]),
		steps:   binary.BigEndian.Uint32(p.data[8:]),
	}
	if o.version < 2 || o.version > offer.version {
		return options{}, fmt.Errorf("the filter wants protocol version %d, %d was offered", o.version, offer.version)
	}
	if extra := o.actions &^ offer.actions; extra != 0 {
		return options{}, fmt.Errorf("the filter wants actions %#x, which protocol version %d does not have", extra, offer.version)
	}
	o.steps &= offered[6].steps // filters that want more than they were offered work with Postfix
	rest := packet{p.kind, p.data[12:]}
	for len(rest.data) > 0 {
		n, err := rest.index()
		if err != nil {
			return options{}, err
		}
		names, r, ok := cutString(rest.data)
		if !ok {
			return options{}, fmt.Errorf("%w: macro list without end", errPacket)
		}
		rest.data = r
		if n < uint32(mailfilter.StageUnknown) {
			if o.macros == nil {
				o.macros = make(map[mailfilter.Stage][]string)
			}
			o.macros[mailfilter.Stage(n)] = macroNames(names)
		}
	}
	return o, nil
}
