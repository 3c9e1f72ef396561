package dkimkey

import (
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"

	"posthaste/internal/rights"
)

// Readable says why a key cannot be read by owner, who is mail_owner, as whom mail is signed; nil if it
// can. Root asks: another user asks whether itself can read it, since nobody else's rights can be
// had. Neither root's rights nor root's group count for owner.
func Readable(file, owner string) error {
	who := rights.Own
	if rights.Switching() {
		u, err := user.Lookup(owner)
		if err != nil {
			return fmt.Errorf("mail_owner: %w", err)
		}
		ids, err := u.GroupIds()
		if err != nil {
			return fmt.Errorf("mail_owner: %w", err)
		}
		who = rights.Rights{}
		if who.UID, err = strconv.Atoi(u.Uid); err != nil {
			return err
		}
		if who.GID, err = strconv.Atoi(u.Gid); err != nil {
			return err
		}
		for _, id := range ids {
			if g, err := strconv.Atoi(id); err == nil && g != 0 && !slices.Contains(who.Groups, g) {
				who.Groups = append(who.Groups, g)
			}
		}
	}
	err := who.Do(func() error {
		f, err := os.Open(file)
		if err == nil {
			err = f.Close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s, the user of the mail system, cannot read the key: %w", owner, err)
	}
	return nil
}
