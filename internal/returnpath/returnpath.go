// Package returnpath makes the envelope senders with which mail of lists leaves this system, one for each
// delivery, and takes them apart when something comes back to them. It does no I/O.
//
//	b+TOKEN@bounces.example.org
//
// TOKEN is base32, in lower case; hosts on the way may change that. Its octets are
//
//	1  version (4 bits), octets of the queue ID (4 bits)
//	2  day on which it was made, since 1970
//	5  where the delivery is recorded, in that day's record
//	6  keyed hash of the recipient
//	n  queue ID, six bits a character; none if it does not fit
//	10 keyed hash of the domain and of all that stands before it
//
// With the longest queue ID the local part has 63 characters, of the 64 that RFC 5321 section 4.5.3.1.1 has
// everybody take. So a token says by itself, and without any record, that this system has sent a message of
// that queue ID on that day, and of each address whether it was the recipient. What does not fit, the
// recipient's address itself, is in the record.
//
// # Security
//
// Addresses come from strangers. One whose hash does not match, with 80 bits of it, counts for nothing. Who has a
// token is the recipient of the message, or a system on the way there: it speaks for that one recipient and no other.
// Keys are secrets of any length; the first one signs, and all verify, so that they can be replaced.
package returnpath

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"posthaste/internal/rfc5322"
)

const (
	prefix  = "b+"
	version = 1

	sizeHead = 1 + 2 + 5
	sizeRcpt = 6
	sizeMAC  = 10
	maxID    = 14 // octets of a queue ID
	// MaxPosition is what a Position must be below.
	MaxPosition = 1 << 40
)

// Why an address is not taken apart.
var (
	ErrNone    = errors.New("it is not a return path of this system")
	ErrForged  = errors.New("its hash does not match")
	ErrExpired = errors.New("it is too old")
)

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// A Coder makes and takes apart the return paths of one domain. It is not changed while it is used, and may be used
// concurrently.
type Coder struct {
	Domain  string
	Secrets []string // the first one signs, all verify; at least one
	MaxDays int      // how many days after it was made an address counts
}

// A Token is what a return path says.
type Token struct {
	Day      int   // since 1970, in UTC
	Position int64 // from 0, below MaxPosition
	QueueID  string
	rcpt     [sizeRcpt]byte
	secret   string // that signed it
}

// Day is the day of a time.
func Day(t time.Time) int { return int(t.Unix() / 86400) }

// Ours says whether addr looks like one of the Coder's. Whether it is one, Parse says.
func (c *Coder) Ours(addr string) bool {
	local, domain, at := rfc5322.Split(addr)
	return at && strings.EqualFold(domain, c.Domain) && len(local) > len(prefix) && strings.EqualFold(local[:len(prefix)], prefix)
}

// Make is the return path of a delivery to a recipient, of the Day, Position and QueueID of t.
func (c *Coder) Make(t Token, recipient string) string {
	id := packID(t.QueueID)
	b := make([]byte, 0, sizeHead+sizeRcpt+maxID+sizeMAC)
	b = append(b, version<<4|byte(len(id)))
	b = binary.BigEndian.AppendUint16(b, uint16(t.Day))
	b = append(b, byte(t.Position>>32))
	b = binary.BigEndian.AppendUint32(b, uint32(t.Position))
	hash := recipientHash(c.Secrets[0], recipient)
	b = append(b, hash[:]...)
	b = append(b, id...)
	b = append(b, c.mac(c.Secrets[0], b)...)
	return prefix + encoding.EncodeToString(b) + "@" + c.Domain
}

// Parse takes an address apart. The error is one of this package.
func (c *Coder) Parse(addr string, now time.Time) (t Token, err error) {
	if !c.Ours(addr) {
		return t, ErrNone
	}
	local, _, _ := rfc5322.Split(addr)
	b, err := encoding.DecodeString(strings.ToLower(local[len(prefix):]))
	if err != nil || len(b) < sizeHead+sizeRcpt+sizeMAC || b[0]>>4 != version {
		return t, ErrForged
	}
	n := int(b[0] & 15)
	if len(b) != sizeHead+sizeRcpt+n+sizeMAC {
		return t, ErrForged
	}
	body, mac := b[:len(b)-sizeMAC], b[len(b)-sizeMAC:]
	// All are tried, so that the time it takes does not tell which.
	for _, s := range c.Secrets {
		if hmac.Equal(mac, c.mac(s, body)) {
			t.secret = s
		}
	}
	if t.secret == "" {
		return Token{}, ErrForged
	}
	t.Day = int(binary.BigEndian.Uint16(body[1:]))
	t.Position = int64(body[3])<<32 | int64(binary.BigEndian.Uint32(body[4:]))
	copy(t.rcpt[:], body[sizeHead:])
	t.QueueID = unpackID(body[sizeHead+sizeRcpt:])
	// One of tomorrow is good: the host that made it may share our secret, and its clock be ahead.
	if age := Day(now) - t.Day; age > c.MaxDays || age < -1 {
		return Token{}, ErrExpired
	}
	return t, nil
}

// IsFor says whether the return path was made for that recipient. t is of Parse.
func (t *Token) IsFor(recipient string) bool {
	hash := recipientHash(t.secret, recipient)
	return hmac.Equal(hash[:], t.rcpt[:])
}

// mac is the hash of a token.
func (c *Coder) mac(secret string, body []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte("return path\x00" + strings.ToLower(c.Domain) + "\x00"))
	h.Write(body)
	return h.Sum(nil)[:sizeMAC]
}

// Fold is an address in lower case, by which addresses are compared: its ASCII letters alone. By Unicode's rules
// the Kelvin sign is a k, and other letters become one as well: who can have mail sent to such an address, where nobody has
// it, would have that of another person suppressed.
func Fold(addr string) string {
	b := []byte(addr)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// recipientHash is the hash of a recipient, whose letter case does not count.
func recipientHash(secret, recipient string) (hash [sizeRcpt]byte) {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte("recipient\x00" + Fold(recipient)))
	copy(hash[:], h.Sum(nil))
	return hash
}

// idCharacters are those of queue IDs. The 64th value is no character, and fills up.
const idCharacters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// packID is a queue ID in six bits a character; nothing if it is not one, or too long.
func packID(id string) []byte {
	size := (len(id)*6 + 7) / 8
	if size > maxID {
		return nil
	}
	b := make([]byte, 0, size)
	var bits, n uint
	for i := range len(id) {
		v := strings.IndexByte(idCharacters, id[i])
		if v < 0 {
			return nil
		}
		bits, n = bits<<6|uint(v), n+6
		if n >= 8 {
			n -= 8
			b = append(b, byte(bits>>n))
		}
	}
	if n > 0 {
		b = append(b, byte(bits<<(8-n))|byte(1<<(8-n)-1))
	}
	return b
}

// unpackID is the queue ID.
func unpackID(b []byte) string {
	var id []byte
	var bits, n uint
	for _, c := range b {
		bits, n = bits<<8|uint(c), n+8
		for n >= 6 {
			n -= 6
			v := bits >> n & 63
			if v < uint(len(idCharacters)) {
				id = append(id, idCharacters[v])
			}
		}
	}
	return string(id)
}
