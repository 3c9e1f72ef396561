package agent

import (
	"bytes"
	"io"
)

// inMemory is content that is not in a spool.
type inMemory []byte

func (m inMemory) Len() int64        { return int64(len(m)) }
func (m inMemory) Bytes() []byte     { return m }
func (m inMemory) Reader() io.Reader { return bytes.NewReader(m) }
func (m inMemory) Close() error      { return nil }
