//go:build slowsync

package vfs

import "time"

// slowly has each sync take 10 ms longer.
func slowly() { time.Sleep(10 * time.Millisecond) }
