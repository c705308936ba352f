-- What each script that writes begins with. Where Redis refuses a script a command, what it wrote before stays: a row
-- without its change, or without its place in the order, and whoever brings it again would find that it is there. So
-- all that the script may call is asked for first.
for _, command in ipairs({$COMMANDS}) do
  if not redis.acl_check_cmd(command, KEYS[1]) then
    return redis.error_reply("NOPERM this user has no permissions to run the '" .. command .. "' command in a script")
  end
end
