-- The tables and functions of a schema. schema.py makes them, and says what they are for.

create schema if not exists {s};
create table {s}.meta (format int not null, timeline text not null);
create table {s}.roots (
    id int generated always as identity primary key, name text collate "C" not null unique);
create table {s}.entries (
    root int not null, key text collate "C" not null, token bigint not null, created bigint not null, owner text collate "C",
    value bytea not null) with (fillfactor = 80);
create index entries_by_key on {s}.entries (root, left(key, {head}));
create index entries_by_owner on {s}.entries (owner) where owner is not null;
create table {s}.changes (
    root int not null, token bigint not null, request bigint not null, key text collate "C" not null, created bigint,
    owner text collate "C", at timestamptz not null default clock_timestamp());
create index changes_by_token on {s}.changes (root, token);
create table {s}.sessions (
    id text collate "C" primary key, root int not null, ttl_s float8 not null, deadline timestamptz not null)
    with (fillfactor = 50);
create index sessions_by_root on {s}.sessions (root);
create table {s}.writers (
    id bigint primary key, root int not null, timeline text not null default {timeline},
    at timestamptz not null default clock_timestamp());
create index writers_by_root on {s}.writers (root);
create table {s}.counters (root int not null, parent bytea not null, next bigint not null, primary key (root, parent));
create sequence {s}.tokens;
insert into {s}.meta values ({format}, {timeline});

-- End a session, if it is there: under the lock of the root.
create function {s}.end_session(r int, session text) returns void language plpgsql as $$
declare t bigint := 0; c record;
begin
  delete from {s}.sessions where id = session and root = r;
  for c in delete from {s}.entries where root = r and owner = session returning key loop
    if t = 0 then t := nextval('{s}.tokens'); end if;
    insert into {s}.changes (root, token, request, key) values (r, t, 0, c.key);
  end loop;
end $$;

-- Whether a session is alive; one whose time is over is ended, so that it stays dead. Under the lock of the root.
create function {s}.is_alive(r int, session text) returns boolean language plpgsql as $$
declare alive boolean;
begin
  select {alive} into alive from {s}.sessions where id = session and root = r;
  if not alive then perform {s}.end_session(r, session); end if;
  return coalesce(alive, false);
end $$;

-- Whether a key exists.
create function {s}.has_key(r int, k text) returns boolean language plpgsql as $$
begin
  return exists (select from {s}.entries where root = r and left(key, {head}) = left(k, {head}) and key = k);
end $$;

-- Refuse a key that would not be a leaf although it, or one above it, is bound to a session.
create function {s}.check_leaf(r int, k text, is_bound boolean, is_new boolean) returns void language plpgsql as $$
declare above text[] := '{{}}'; at int := 0; cut int; bound text;
begin
  if is_bound and exists (
    select from {s}.entries where root = r and left(key, {head}) >= left(k || '/', {head}) and left(key, {head}) <= left(k || '0', {head})
      and key > k || '/' and key < k || '0'
  ) then
    raise exception using errcode = '{not_a_leaf}', message = 'it has keys below it', detail = k;
  end if;
  if not is_new then return; end if;
  loop
    cut := position('/' in substr(k, at + 1));
    exit when cut = 0;
    at := at + cut;
    above := above || left(k, at - 1);
  end loop;
  if at > 0 then
    select e.key into bound from unnest(above) a join {s}.entries e
      on e.root = r and left(e.key, {head}) = left(a, {head}) and e.key = a and e.owner is not null limit 1;
    if found then
      raise exception using errcode = '{not_a_leaf}', message = 'it lies below ' || quote_literal(bound) || ', which is bound to a session',
        detail = k;
    end if;
  end if;
end $$;

-- The next number of a parent.
create function {s}.take_number(r int, k text) returns bigint language plpgsql as $$
declare parent bytea := sha256(convert_to(case when position('/' in k) = 0 then '' else substring(k from '^(.*)/') end, 'UTF8')); n bigint;
begin
  insert into {s}.counters as c values (r, parent, 1)
    on conflict on constraint counters_pkey do update set next = c.next + 1 returning c.next - 1 into n;
  if n >= 10000000000 then raise exception using errcode = '{no_number_left}', message = 'no number is left'; end if;
  return n;
end $$;

-- Several commits, each all or nothing, with a token of its own. Their rows:
--   c  a check that does not hold: its number
--   x  an operation that does not: its number
--   g  the session of an operation has ended: its id
--   w  a written key: number of the operation, token, created, owner, key; o likewise, with names of older keys in extra
--   d  a deleted key: number of the operation, token
--   s  the writer has been superseded: nothing was done
create function {s}.write(
  r int, writer bigint, requests bigint[], check_ends int[], check_kinds text, check_keys text[], check_tokens bigint[],
  op_ends int[], op_kinds text, op_keys text[], op_sessions text[], op_stems text[], value_ends int[], data bytea
) returns table (n int, kind text, i int, token bigint, created bigint, owner text, key text, extra text) language plpgsql as $$
#variable_conflict use_column
declare
  c_from int := 0; o_from int := 0; c_to int; o_to int; at int; fails boolean; alive boolean; is_new boolean;
  t bigint; found_token bigint; c bigint; o text; k text; what text; ss text; stem text; v bytea; start int; fresh text;
begin
  perform pg_advisory_xact_lock({root_lock}, r);
  if not exists (select from {s}.writers where id = writer and timeline = {timeline}) then
    return query select 0, 's', 0, 0::bigint, 0::bigint, null::text, null::text, null::text;
    return;
  end if;
  for nth in 1 .. cardinality(requests) loop
    c_to := check_ends[nth]; o_to := op_ends[nth]; fails := false; t := 0; ss := null; fresh := '';
    for at in o_from + 1 .. o_to loop
      if op_sessions[at] is not null and op_sessions[at] is distinct from ss then
        ss := op_sessions[at];
        if not {s}.is_alive(r, ss) then
          n := nth; kind := 'g'; owner := ss; return next; fails := true; exit;
        end if;
      end if;
    end loop;
    if not fails then
      for at in c_from + 1 .. c_to loop
        k := check_keys[at]; what := substr(check_kinds, at, 1);
        if what = 's' then
          alive := {s}.is_alive(r, k);
        else
          select e.token into found_token from {s}.entries e where e.root = r and left(e.key, {head}) = left(k, {head}) and e.key = k;
          alive := case what when 'a' then found and found_token = check_tokens[at] when 'n' then not found else found end;
        end if;
        if not alive then n := nth; kind := 'c'; i := at - c_from - 1; return next; fails := true; end if;
      end loop;
      for at in o_from + 1 .. o_to loop
        if substr(op_kinds, at, 1) in ('c', 'o') and {s}.has_key(r, op_keys[at]) then
          n := nth; kind := 'x'; i := at - o_from - 1; return next; fails := true;
        end if;
      end loop;
    end if;
    if not fails then
      for at in o_from + 1 .. o_to loop
        k := op_keys[at]; what := substr(op_kinds, at, 1);
        if what = 'd' then
          fresh := fresh || '-';
          delete from {s}.entries e where e.root = r and left(e.key, {head}) = left(k, {head}) and e.key = k;
          if found then
            if t = 0 then t := nextval('{s}.tokens'); end if;
            insert into {s}.changes (root, token, request, key) values (r, t, requests[nth], k);
            n := nth; kind := 'd'; i := at - o_from - 1; token := t; return next;
          end if;
        else
          if t = 0 then t := nextval('{s}.tokens'); end if;
          ss := op_sessions[at];
          start := case when at = 1 then 0 else value_ends[at - 1] end;
          v := substr(data, start + 1, value_ends[at] - start);
          is_new := what <> 'p';
          if what = 'n' then
            stem := k;
            loop
              k := stem || lpad({s}.take_number(r, stem)::text, 10, '0');
              exit when not {s}.has_key(r, k);
            end loop;
          elsif what = 'p' then
            update {s}.entries e set value = v, token = t, owner = coalesce(ss, e.owner)
              where e.root = r and left(e.key, {head}) = left(k, {head}) and e.key = k returning e.created, e.owner into c, o;
            is_new := not found;
          end if;
          if is_new then
            insert into {s}.entries values (r, k, t, t, ss, v);
            c := t; o := ss;
          end if;
          fresh := fresh || case when is_new and position('/' in k) > 0 then 'n' when ss is not null then 'b' else '-' end;
          insert into {s}.changes (root, token, request, key, created, owner) values (r, t, requests[nth], k, c, o);
          extra := null;
          if what = 'o' then
            stem := op_stems[at];
            start := length(stem) - position('/' in reverse(stem)) + 2;
            if position('/' in stem) = 0 then start := 1; end if;
            extra := array_to_string(array(
              select substr(e.key, start) from {s}.entries e where e.root = r and left(e.key, {head}) >= left(stem, {head})
                and left(e.key, {head}) <= left(stem || chr(127), {head}) and e.key >= stem and e.key < stem || chr(127)
                and e.created < c and position('/' in substr(e.key, start)) = 0 order by e.created limit {most_older} + 1), '/');
          end if;
          n := nth; kind := case what when 'o' then 'o' else 'w' end; i := at - o_from - 1;
          token := t; created := c; owner := o; key := k; return next;
        end if;
      end loop;
      for at in o_from + 1 .. o_to loop
        what := substr(fresh, at - o_from, 1);
        if what <> '-' then
          perform {s}.check_leaf(r, op_keys[at], op_sessions[at] is not null, what = 'n');
        end if;
      end loop;
    end if;
    c_from := c_to; o_from := o_to;
  end loop;
end $$;

-- Delete a part of a subtree; how many keys, or null when the writer was superseded.
create function {s}.delete_below(r int, writer bigint, request bigint, prefix text, most int) returns int language plpgsql as $$
declare t bigint; deleted int;
begin
  perform pg_advisory_xact_lock({root_lock}, r);
  if not exists (select from {s}.writers where id = writer and timeline = {timeline}) then return null; end if;
  t := nextval('{s}.tokens');
  with below as (
    select ctid from {s}.entries where prefix <> '' and root = r and left(key, {head}) >= left(prefix || '/', {head})
      and left(key, {head}) <= left(prefix || '0', {head}) and key > prefix || '/' and key < prefix || '0' limit most
  ), top as (
    select ctid from {s}.entries where root = r and (
      (prefix <> '' and left(key, {head}) = left(prefix, {head}) and key = prefix)
      or (prefix = '' and left(key, 1) <> '@')) limit most - (select count(*) from below)
  ), gone as (
    delete from {s}.entries where ctid = any (array(select ctid from below union all select ctid from top)) returning key
  )
  insert into {s}.changes (root, token, request, key) select r, t, request, key from gone;
  get diagnostics deleted = row_count;
  return deleted;
end $$;

create function {s}.open_session(r int, session text, for_s float8) returns bigint language plpgsql as $$
begin
  perform {s}.succeed();
  insert into {s}.sessions values (session, r, for_s, clock_timestamp() + for_s * interval '1 second')
    on conflict (id) do update set deadline = excluded.deadline;
  return nextval('{s}.tokens');
end $$;

-- Renew sessions; the ids of those that are alive. Not flushed to disk: see is_alive.
create function {s}.renew_sessions(r int, ids text[]) returns setof text language plpgsql as $$
begin
  perform {s}.succeed();
  perform set_config('synchronous_commit', 'off', true);
  return query update {s}.sessions set deadline = clock_timestamp() + ttl_s * interval '1 second'
    where id = any (ids) and root = r and {alive} returning id;
end $$;

create function {s}.close_sessions(r int, ids text[]) returns void language plpgsql as $$
declare session text;
begin
  perform pg_advisory_xact_lock({root_lock}, r);
  foreach session in array ids loop perform {s}.end_session(r, session); end loop;
end $$;

-- End sessions whose time is over; seconds until the next one's is, if it is not renewed; null without sessions. A deadline
-- further away than the TTL means that the clock was set back: the session gets a TTL from now.
create function {s}.sweep(r int, out ended int, out next_s float8) language plpgsql as $$
declare session text;
begin
  ended := 0;
  perform {s}.succeed();
  if exists (select from {s}.sessions where root = r and deadline > clock_timestamp() + ttl_s * interval '1 second') then
    update {s}.sessions set deadline = clock_timestamp() + ttl_s * interval '1 second'
      where root = r and deadline > clock_timestamp() + ttl_s * interval '1 second';
  end if;
  if exists (select from {s}.sessions where root = r and not {alive}) then
    perform pg_advisory_xact_lock({root_lock}, r);
    for session in select id from {s}.sessions where root = r and not {alive} for update skip locked loop
      perform {s}.end_session(r, session);
      ended := ended + 1;
    end loop;
  end if;
  select extract(epoch from min({until}) - clock_timestamp())
    into next_s from {s}.sessions where root = r;
end $$;

-- Let a new writer take the place of one whose last requests are in doubt: they can no longer be applied. What was applied of them.
create function {s}.supersede(r int, before bigint, after bigint, since bigint, in_doubt bigint[])
  returns table (request bigint, token bigint, key text, created bigint, owner text) language plpgsql as $$
#variable_conflict use_column
begin
  perform {s}.succeed();
  perform pg_advisory_xact_lock({root_lock}, r);
  delete from {s}.writers where id = before or (root = r and at < clock_timestamp() - interval '1 day');
  insert into {s}.writers (id, root) values (after, r) on conflict do nothing;
  if cardinality(in_doubt) > 0 then
    return query select c.request, c.token, c.key, c.created, c.owner from {s}.changes c
      where c.root = r and c.token > since and c.request = any (in_doubt) order by c.token;
  end if;
end $$;

create function {s}.leave(r int, writer bigint, ids text[]) returns void language plpgsql as $$
begin
  perform {s}.close_sessions(r, ids);
  delete from {s}.writers where id = writer;
end $$;

-- Forget old changes: so many are kept, and the younger ones, and always the last.
create function {s}.trim(r int, most int, for_s int) returns void language plpgsql as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  delete from {s}.changes where root = r and at < clock_timestamp() - for_s * interval '1 second'
    and token < (select token from {s}.changes where root = r order by token desc offset most limit 1);
end $$;

create function {s}.notify(channel text, who text) returns void language plpgsql as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  perform pg_notify(channel, who);
end $$;

create function {s}.make_root(called text) returns int language plpgsql as $$
declare r int;
begin
  insert into {s}.roots (name) values (called) on conflict do nothing returning id into r;
  if found then
    insert into {s}.changes (root, token, request, key) values (r, nextval('{s}.tokens'), 0, '@');
  else
    select id into r from {s}.roots where name = called;
  end if;
  return r;
end $$;

-- If the server is another one than before, a standby that was promoted, it may lack the last writes: end all sessions, leave
-- a gap in the tokens. Without any lock of a root: it takes them all.
create function {s}.succeed() returns void language plpgsql as $$
declare each record;
begin
  if (select timeline from {s}.meta) = {timeline} then return; end if;
  perform from {s}.meta for update;
  if (select timeline from {s}.meta) = {timeline} then return; end if;
  perform setval('{s}.tokens', nextval('{s}.tokens') + {tokens_skipped});
  for each in select id, root from {s}.sessions order by root loop
    perform pg_advisory_xact_lock({root_lock}, each.root);
    perform {s}.end_session(each.root, each.id);
  end loop;
  update {s}.meta set timeline = {timeline};
end $$;
