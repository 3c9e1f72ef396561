package postsuper

import (
	"slices"

	"posthaste/internal/mail"
	"posthaste/internal/reuse"
)

// packed are targets in some 20 octets each, for the list of a whole queue. The zero value is
// empty.
type packed struct {
	chunks [][]byte // records: the length of the ID, the ID, twice the place in queues and 1 if expired
	queues []string
}

// packedChunk is the size of a chunk: of the list no more than that is memory in vain.
const packedChunk = 256 << 10

// add adds a target. Queue IDs are shorter than 256 octets, and there are fewer than 128 queues.
func (p *packed) add(t target) {
	at := slices.Index(p.queues, t.queue)
	if at < 0 {
		at = len(p.queues)
		p.queues = append(p.queues, t.queue)
	}
	how := byte(at << 1)
	if t.expired {
		how |= 1
	}
	last := len(p.chunks) - 1
	if last < 0 || len(p.chunks[last])+len(t.id)+2 > packedChunk {
		p.chunks = append(p.chunks, make([]byte, 0, packedChunk))
		last++
	}
	b := append(p.chunks[last], byte(len(t.id)))
	p.chunks[last] = append(append(b, t.id...), how)
}

// each calls f for groups of the targets, in the order in which they were added, until it fails.
func (p *packed) each(size int, f func([]target) error) error {
	var group []target
	for i, b := range p.chunks {
		for len(b) > 0 {
			n := int(b[0])
			how := b[1+n]
			group = append(group, target{mail.QueueID(b[1 : 1+n]), p.queues[how>>1], how&1 != 0})
			if b = b[n+2:]; len(group) < size {
				continue
			}
			if err := f(group); err != nil {
				return err
			}
			group = reuse.Truncated(group)
		}
		p.chunks[i] = nil
	}
	if len(group) == 0 {
		return nil
	}
	return f(group)
}
